"""Datasets and a finished run that several end-to-end tests look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import deepspeed_pretrain, run
from tests.support.datasets import make_dataset
from tests.support.recipes import tiny_recipe, write_recipe


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DATA with seq32 and seq64, random rows."""
    folder = tmp_path_factory.mktemp("data")
    for length in (32, 64):
        make_dataset(folder / f"seq{length}", sequence_length=length)
    return folder


@pytest.fixture(scope="session")
def tiny_recipe_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe of two phases, long enough to be interrupted."""
    return write_recipe(
        tmp_path_factory.mktemp("recipes") / "tiny", tiny_recipe(total_steps=(12, 8))
    )


@pytest.fixture(scope="session")
def finished_run(
    tiny_data: Path, tiny_recipe_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An undisturbed run of the tiny recipe on two ranks under the deepspeed launcher."""
    output = tmp_path_factory.mktemp("runs") / "undisturbed"
    done = run(*deepspeed_pretrain(2, tiny_recipe_folder, tiny_data, output))
    assert done.returncode == 0, done.stderr
    return output
