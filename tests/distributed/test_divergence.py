"""A run that diverges ends by itself, in every precision and at every stage of ZeRO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.datasets import make_dataset
from tests.support.ranks import run_on_ranks
from tests.support.recipes import tiny_deepspeed, tiny_recipe, write_recipe
from tests.support.run_folders import rows_of, summary_of
from tests.support.runs import pretrain_in_rank, pretrain_with_fp16_on_cpu

pytestmark = pytest.mark.slow

EXPLODES = "deepspeed.optimizer.params.lr=1e18"
BF16 = "deepspeed.bf16.enabled=true"
FP16 = "deepspeed.fp16.enabled=true"
MOST_UPDATES = 30


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, and a recipe of 500 updates that logs at the default interval."""
    folder = tmp_path_factory.mktemp("divergence")
    make_dataset(folder / "data" / "seq32", sequence_length=32)
    recipe = tiny_recipe(total_steps=(500, 1))
    recipe["phases"].pop()
    recipe["phases"][0]["schedule"]["warmup_proportion"] = 0.01
    recipe["checkpoint"] = {"every_steps": 1000}
    assert "logging" not in recipe
    write_recipe(folder / "recipe", recipe, tiny_deepspeed())
    return folder


def train(place: Path, run: Path, settings: list[str], function: Any) -> None:
    run_on_ranks(2, function, run.parent, place / "recipe", place / "data", run, settings)


@pytest.mark.parametrize(
    ("stage", "precision"),
    [
        (stage, precision)
        for precision in ("fp32", "bf16", "fp16")
        for stage in (0, 1, 2, 3)
        if stage or precision == "fp32"  # half precision at stage 0 is refused
    ],
)
def test_a_diverged_run_ends_within_thirty_updates(
    place: Path, tmp_path: Path, stage: int, precision: str
) -> None:
    settings = [EXPLODES, f"deepspeed.zero_optimization.stage={stage}"]
    settings += {"fp32": [], "bf16": [BF16], "fp16": [FP16]}[precision]
    function = pretrain_with_fp16_on_cpu if precision == "fp16" else pretrain_in_rank
    with pytest.raises(AssertionError, match="DivergedError: "):
        train(place, tmp_path / "run", settings, function)
    last = rows_of(tmp_path / "run")[-1]
    assert 0 < last["global_step"] + last["skipped_steps"] <= MOST_UPDATES


@pytest.mark.parametrize("settings", [[], [BF16]], ids=["fp32", "bf16"])
def test_a_skipped_update_is_answered_by_a_rollback(
    place: Path, tmp_path: Path, settings: list[str]
) -> None:
    """Without a loss scale a skipped update cannot get better: each time the run goes back."""
    run = tmp_path / "run"
    settings = [*settings, EXPLODES, "divergence.action=rollback", "checkpoint.every_steps=1"]
    settings += ["deepspeed.zero_optimization.stage=1", "checkpoint.keep_last=9"]
    with pytest.raises(AssertionError, match="has diverged at update"):
        train(place, run, settings, pretrain_in_rank)
    assert len(summary_of(run)["rollbacks"]) == 3  # as many as divergence.max_rollbacks allows
    assert rows_of(run)[-1]["global_step"] <= MOST_UPDATES
