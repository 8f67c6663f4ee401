"""One trajectory at every world size, accumulation and ZeRO stage, with and without offload."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bert_ds.distributed.world import World
from tests.support.datasets import make_dataset
from tests.support.ranks import run_on_ranks
from tests.support.recipes import tiny_deepspeed, tiny_recipe, write_recipe
from tests.support.run_folders import final_tensors, rows_of, summary_of
from tests.support.runs import pretrain_in_rank

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

TOLERANCE = 1e-5
"""Of losses, and of each tensor's norm after 10 updates."""
OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
STAGES: dict[str, dict[str, Any]] = {
    "0": {"stage": 0},
    "1": {"stage": 1},
    "2": {"stage": 2},
    "2 offload": {"stage": 2, **OFFLOAD},
    "3": {"stage": 3},
    "3 offload": {"stage": 3, **OFFLOAD},
}
MICRO_BATCHES = {1: (8, 2), 2: (2,), 4: (2,)}
"""World size to micro batches, of 8 rows an update."""
STAGES_AT = {1: STAGES, 2: STAGES, 4: {key: STAGES[key] for key in ("0", "1", "2", "3")}}
"""Without offload at 4 ranks: it shares the shards out as at 2."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("matrix")
    for length in (32, 64):
        make_dataset(folder / "data" / f"seq{length}", sequence_length=length, num_train=100)
    deepspeed = tiny_deepspeed(8, 8)
    deepspeed["gradient_clipping"] = 0.5  # active: the norms are above 1
    recipe = tiny_recipe()
    recipe["model"] |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    write_recipe(folder / "recipe", recipe, deepspeed)
    return folder


def overrides_of(stage: str, micro: int) -> list[str]:
    return [
        f"deepspeed.zero_optimization={json.dumps(STAGES[stage])}",
        f"deepspeed.train_micro_batch_size_per_gpu={micro}",
    ]


def pretrain_at_all_stages(world: World, place: Path) -> None:
    """All runs of a world size in one process a rank."""
    for micro in MICRO_BATCHES[world.world_size]:
        for stage in STAGES_AT[world.world_size]:
            run = place / f"{world.world_size} ranks, micro {micro}, stage {stage}"
            settings = overrides_of(stage, micro)
            pretrain_in_rank(world, place / "recipe", place / "data", run, settings)


LONG = {1, 4}


@pytest.mark.parametrize(
    "world_size",
    [pytest.param(n, marks=[pytest.mark.long] if n in LONG else []) for n in MICRO_BATCHES],
)
def test_every_layout_gives_the_same_losses_and_weights(place: Path, world_size: int) -> None:
    run_on_ranks(world_size, pretrain_at_all_stages, place, place, timeout_s=380)
    reference = place / "1 ranks, micro 8, stage 0"
    if not reference.exists():  # the tests run in any order, and at the same time
        run_on_ranks(
            1, pretrain_in_rank, place, place / "recipe", place / "data", reference,
            overrides_of("0", 8),
        )  # fmt: skip
    losses, tensors = [row["loss"] for row in rows_of(reference)], final_tensors(reference)
    assert min(row["grad_norm"] for row in rows_of(reference)) > 0.5
    assert len(losses) == 10
    runs = sorted(place.glob(f"{world_size} ranks, *"))
    assert len(runs) == len(STAGES_AT[world_size]) * len(MICRO_BATCHES[world_size])
    for run in runs:
        assert [row["loss"] for row in rows_of(run)] == pytest.approx(losses, rel=TOLERANCE), run
        for name, value in final_tensors(run).items():
            if "key.bias" not in name and not name.startswith("exp_avg"):
                difference = float((value - tensors[name]).norm() / tensors[name].norm())
                assert difference < TOLERANCE, (run.name, name)
        held_out = summary_of(run)["held_out"]["mlm_loss"]
        assert held_out == pytest.approx(summary_of(reference)["held_out"]["mlm_loss"], rel=1e-5)
