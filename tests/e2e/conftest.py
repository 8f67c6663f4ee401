"""Datasets and a finished run that several end-to-end tests look at."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.commands import deepspeed_pretrain, run
from tests.support.datasets import make_dataset
from tests.support.recipes import tiny_recipe, write_recipe
from tests.support.shared import made_once


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DATA with seq32 and seq64, random rows."""

    def make(folder: Path) -> None:
        for length in (32, 64):
            make_dataset(folder / f"seq{length}", sequence_length=length)

    return made_once(tmp_path_factory, "data", make)


@pytest.fixture(scope="session")
def tiny_recipe_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe of two phases, long enough to be interrupted."""
    recipe = tiny_recipe(total_steps=(12, 8))
    return made_once(tmp_path_factory, "tiny", lambda folder: write_recipe(folder, recipe))


@pytest.fixture(scope="session")
def finished_run(
    tiny_data: Path, tiny_recipe_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An undisturbed run of the tiny recipe on two ranks under the deepspeed launcher; to read."""

    def make(output: Path) -> None:
        done = run(*deepspeed_pretrain(2, tiny_recipe_folder, tiny_data, output))
        assert done.returncode == 0, done.stderr

    return made_once(tmp_path_factory, "undisturbed", make)


@pytest.fixture
def own_run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run that the test may write to."""
    copy = tmp_path / "own"
    shutil.copytree(finished_run, copy)
    return copy
