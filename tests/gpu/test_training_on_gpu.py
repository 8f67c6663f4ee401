"""The tiny recipe on a real GPU: the CPU's losses, export and resume included."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.support.commands import run
from tests.support.datasets import make_dataset
from tests.support.recipes import write_recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

NO_DROPOUT = ("model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0")


def losses(run_folder: Path) -> list[float]:
    lines = (run_folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def pretrain(place: Path, output: Path, accelerator: str) -> None:
    done = run(
        "bert-ds", "pretrain", "--recipe", place / "recipe", "--data", place / "data",
        "--output-dir", output, "--set", *NO_DROPOUT, env={"DS_ACCELERATOR": accelerator},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_gpu_gives_the_losses_of_the_cpu(tmp_path: Path) -> None:
    for length in (32, 64):
        make_dataset(tmp_path / "data" / f"seq{length}", sequence_length=length)
    write_recipe(tmp_path / "recipe")
    pretrain(tmp_path, tmp_path / "cpu", "cpu")
    pretrain(tmp_path, tmp_path / "gpu", "cuda")
    # float32 matrix products of a GPU differ in order, not in precision (TF32 is off by default)
    assert losses(tmp_path / "gpu") == pytest.approx(losses(tmp_path / "cpu"), rel=1e-4)
    export = run("bert-ds", "export-hf", "--run", tmp_path / "gpu", "--output-dir", tmp_path / "hf")
    assert export.returncode == 0, export.stderr
