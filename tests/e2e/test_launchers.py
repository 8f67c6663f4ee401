"""The same command under other launchers, with the losses of the deepspeed launcher."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest

from tests.support.commands import BIN, run

pytestmark = pytest.mark.slow


def losses(run_folder: Path) -> list[float]:
    lines = (run_folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def pretrain(recipe: Path, data: Path, output: Path) -> list[str | Path]:
    return ["pretrain", "--recipe", recipe, "--data", data, "--output-dir", output]


def test_torchrun(
    finished_run: Path, tiny_recipe_folder: Path, tiny_data: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    done = run(
        "torchrun", "--nproc_per_node", "2", "--master_port", free_port(), "-m", "bert_ds",
        *pretrain(tiny_recipe_folder, tiny_data, output),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert losses(output) == losses(finished_run)


@pytest.mark.skipif(shutil.which("mpiexec", path=str(BIN)) is None, reason="no mpich installed")
@pytest.mark.parametrize("is_exported", [pytest.param(True, marks=pytest.mark.long), False])
def test_mpiexec(
    finished_run: Path,
    tiny_recipe_folder: Path,
    tiny_data: Path,
    tmp_path: Path,
    is_exported: bool,
) -> None:
    output = tmp_path / "run"
    command = ["mpiexec", "-n", "2", BIN / "python", "-m", "bert_ds"]
    arguments = pretrain(tiny_recipe_folder, tiny_data, output)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    done = run(*command, *arguments, env=place if is_exported else {})
    assert done.returncode == 0, done.stderr
    assert losses(output) == losses(finished_run)


def test_ranks_without_a_meeting_place_say_what_to_export(
    tiny_recipe_folder: Path, tiny_data: Path, tmp_path: Path
) -> None:
    done = run(
        "bert-ds",
        *pretrain(tiny_recipe_folder, tiny_data, tmp_path / "run"),
        env={"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"},
    )
    assert done.returncode == 1
    assert "2 ranks were started by torch, but MASTER_ADDR and MASTER_PORT must be" in done.stderr


def test_one_process_needs_no_launcher(
    finished_run: Path, tiny_recipe_folder: Path, tiny_data: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    done = run("bert-ds", *pretrain(tiny_recipe_folder, tiny_data, output))
    assert done.returncode == 0, done.stderr
    assert losses(output) == pytest.approx(
        losses(finished_run), rel=0.05
    )  # dropout is drawn for other micro batches
