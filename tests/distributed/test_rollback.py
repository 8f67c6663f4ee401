"""A divergence is answered by going back, where that is asked for: logged, and on all ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bert_ds.distributed.world import World
from bert_ds.train import loop
from tests.support.datasets import make_dataset
from tests.support.ranks import run_on_ranks
from tests.support.recipes import tiny_deepspeed, tiny_recipe, write_recipe
from tests.support.run_folders import rows_of, summary_of
from tests.support.runs import pretrain_in_rank

pytestmark = pytest.mark.slow

ROLLBACK = ["divergence.action=rollback", "deepspeed.zero_optimization.stage=1"]
POISONED = (56, 72)
"""Stream positions whose updates have no loss that is a number."""


def pretrain_with_poisoned_rows(world: World, *arguments: Any) -> None:
    """The weights are poisoned with the loss, as they would be."""
    compute = loop.compute_update

    def poisoned(engine: Any, update: Any, *rest: Any) -> Any:
        sums = compute(engine, update, *rest)
        if update.position in POISONED:
            for shard in engine.optimizer.layout.shards:
                shard.tensor.data.fill_(float("nan"))
            return sums * float("nan")
        return sums

    loop.compute_update = poisoned
    pretrain_in_rank(world, *arguments)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for length in (32, 64):
        make_dataset(tmp_path / "data" / f"seq{length}", sequence_length=length)
    recipe = tiny_recipe(total_steps=(9, 3))
    recipe["checkpoint"] = {"every_steps": 2, "keep_last": 9}
    write_recipe(tmp_path / "recipe", recipe, tiny_deepspeed())
    return tmp_path


def train(place: Path, settings: list[str], function: Any = pretrain_with_poisoned_rows) -> Path:
    run = place / "run"
    run_on_ranks(2, function, place, place / "recipe", place / "data", run, settings)
    return run


def test_it_goes_on_from_an_earlier_checkpoint_without_the_rows_since(place: Path) -> None:
    run = train(place, [*ROLLBACK, "divergence.checkpoints_back=2"])
    rows = [row for row in rows_of(run) if row["phase"] == "phase1"]
    # update 8 of rows 56 to 63 diverged: back to update 4, of checkpoints 6 and 4; the rows from 72
    # on, the next but one then, diverge again, with checkpoints 4, 2 and none between
    assert [row["global_step"] for row in rows] == list(range(1, 10))
    assert all(row["loss"] is not None for row in rows)
    seen = [row["samples_seen"] for row in rows]
    assert seen == [8, 16, 88, 96, 104, 112, 120, 128, 136]
    rollbacks = summary_of(run)["rollbacks"]
    assert (run / "checkpoints" / "00-phase1-step00000004-rollback1").is_dir()
    assert [(each["at_step"], each["to_step"]) for each in rollbacks] == [(8, 4), (6, 2)]
    assert [each["rows_left_out"] for each in rollbacks] == [[32, 64], [16, 80]]
    assert "training of phase1 has diverged at update 8: the loss is nan" in rollbacks[0]["cause"]
    assert summary_of(run)["status"] == "complete"


def test_without_leave_or_once_too_often_it_ends(place: Path) -> None:
    with pytest.raises(
        AssertionError,
        match="DivergedError: training of phase1 has diverged at update 8: the loss is nan",
    ):
        train(place, [*ROLLBACK[1:]])
    assert "rollbacks" not in summary_of(place / "run")
    with pytest.raises(AssertionError, match="DivergedError: training of phase1 has diverged"):
        train(place, [*ROLLBACK, "divergence.max_rollbacks=1"])
    assert len(summary_of(place / "run")["rollbacks"]) == 1


def test_before_the_first_checkpoint_there_is_nothing_to_go_back_to(place: Path) -> None:
    with pytest.raises(AssertionError, match="DivergedError: training of phase1 has diverged"):
        train(place, [*ROLLBACK, "checkpoint.every_steps=50"])
    assert not list((place / "run" / "checkpoints").glob("*-step*"))
    assert json.loads((place / "run" / "summary.json").read_text()).get("rollbacks") is None
