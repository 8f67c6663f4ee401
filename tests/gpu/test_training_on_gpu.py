"""The tiny recipe on a real GPU: the CPU's losses, export and resume included."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.support.commands import run
from tests.support.datasets import make_dataset
from tests.support.recipes import tiny_recipe, write_recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

NO_DROPOUT = ("model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0")


def losses(run_folder: Path) -> list[float]:
    lines = (run_folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def pretrain(place: Path, output: Path, accelerator: str, *settings: str) -> None:
    done = run(
        "bert-ds", "pretrain", "--recipe", place / "recipe", "--data", place / "data",
        "--output-dir", output, *(["--set", *settings] if settings else []),
        env={"DS_ACCELERATOR": accelerator},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe, its data, and a run of it on the CPU."""
    folder = tmp_path_factory.mktemp("gpu")
    recipe = tiny_recipe()
    recipe["model"]["vocab_size"] = 61  # 64 inside
    write_recipe(folder / "recipe", recipe)
    for length in (32, 64):
        make_dataset(folder / "data" / f"seq{length}", sequence_length=length, vocab_size=61)
    pretrain(folder, folder / "cpu", "cpu", *NO_DROPOUT)
    return folder


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["execution.batch_layout=padded"],
        ["execution.batch_layout=packed"],
        ["execution.compile=true"],
        ["execution.compile=true", "execution.batch_layout=packed", "execution.recompute_every=1"],
        ["execution.deterministic=true", "deepspeed.zero_optimization.stage=2"],
    ],
    ids=lambda settings: "-".join(text.rpartition(".")[2] for text in settings) or "default",
)
def test_a_gpu_gives_the_losses_of_the_cpu(
    place: Path, settings: list[str], tmp_path: Path
) -> None:
    pretrain(place, tmp_path / "gpu", "cuda", *NO_DROPOUT, *settings)
    # float32 matrix products of a GPU differ in order, not in precision (TF32 is off by default)
    assert losses(tmp_path / "gpu") == pytest.approx(losses(place / "cpu"), rel=1e-4)
    export = run("bert-ds", "export-hf", "--run", tmp_path / "gpu", "--output-dir", tmp_path / "hf")
    assert export.returncode == 0, export.stderr


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_fp16_skips_updates_until_its_loss_scale_fits(
    place: Path, tmp_path: Path, stage: int
) -> None:
    """The norm of a skipped update comes as a Python float, that of an applied one on the GPU."""
    fp16 = 'deepspeed.fp16={"enabled": true, "initial_scale_power": 30, "loss_scale_window": 3}'
    zero = f"deepspeed.zero_optimization.stage={stage}"
    pretrain(place, tmp_path / "run", "cuda", *NO_DROPOUT, fp16, zero)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert rows[0]["skipped_steps"] == 1
    assert rows[0]["grad_norm"] is None  # not finite
    assert all(row["loss"] is not None for row in rows)
    assert [row["global_step"] for row in rows if row["phase"] == "phase1"][-1] == 6


def test_a_deterministic_run_with_dropout_repeats_bit_for_bit(place: Path, tmp_path: Path) -> None:
    settings = ["execution.deterministic=true", "deepspeed.zero_optimization.stage=1"]
    settings += ['deepspeed.fp16={"enabled": true, "initial_scale_power": 12}']
    for name in ("one", "other"):
        pretrain(place, tmp_path / name, "cuda", *settings)
    assert losses(tmp_path / "one") == losses(tmp_path / "other")
