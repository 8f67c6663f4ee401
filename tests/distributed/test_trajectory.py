"""The same training however it is laid out, with the real DeepSpeed engine on gloo ranks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.datasets import make_dataset
from tests.support.ranks import run_on_ranks
from tests.support.recipes import tiny_deepspeed, tiny_recipe, write_recipe
from tests.support.runs import pretrain_in_rank

NO_DROPOUT = ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"]
TOLERANCE = 1e-5
"""Relative. Sums run in another order at another layout; float32 rounding grows over 10 updates."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trajectory")
    for length in (32, 64):
        make_dataset(folder / "data" / f"seq{length}", sequence_length=length, num_train=100)
    write_recipe(folder / "recipe", tiny_recipe(), tiny_deepspeed(8, 2))
    return folder


def train(place: Path, name: str, world_size: int, overrides: list[str]) -> Path:
    run = place / name
    run_on_ranks(
        world_size, pretrain_in_rank, place, place / "recipe", place / "data", run, overrides
    )
    return run


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def weights(run: Path) -> dict[str, torch.Tensor]:
    newest = run / "checkpoints" / (run / "checkpoints" / "latest").read_text().strip()
    return load_file(newest / "weights.safetensors")


@pytest.mark.slow
def test_with_dropout_the_same_layout_repeats_bit_for_bit(place: Path) -> None:
    dropout = ["model.hidden_dropout_prob=0.2"]
    first, second = (train(place, f"dropout-{n}", 2, dropout) for n in (1, 2))
    assert losses(first) == losses(second)
    a, b = weights(first), weights(second)
    assert all(torch.equal(a[name], b[name]) for name in a)
    other = train(place, "dropout-other-seed", 2, [*dropout, "seed=43"])
    assert losses(other) != losses(first)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"), [(2, 1), (1, 2), pytest.param(2, 4, marks=pytest.mark.long)]
)
def test_a_run_goes_on_at_another_world_size(place: Path, before: int, after: int) -> None:
    resumed = train(
        place, f"elastic-{before}-{after}", before, [*NO_DROPOUT, "checkpoint.keep_last=9"]
    )
    expected, expected_weights = losses(resumed), weights(resumed)
    # Back to the middle of phase 1: what came after the checkpoint at update 4 is undone.
    kept = "00-phase1-step00000004"
    for folder in (resumed / "checkpoints").glob("*-step*"):
        if folder.name != kept:
            shutil.rmtree(folder)
    (resumed / "checkpoints" / "latest").write_text(kept)
    (resumed / "summary.json").unlink()
    train(place, resumed.name, after, NO_DROPOUT)
    assert losses(resumed) == pytest.approx(expected, rel=TOLERANCE)
    for key, value in weights(resumed).items():
        if not key.endswith("key.bias"):
            difference = (value - expected_weights[key]).norm()
            assert difference <= TOLERANCE * expected_weights[key].norm() + 1e-9, key
    assert json.loads((resumed / "summary.json").read_text())["world_size"] == after
