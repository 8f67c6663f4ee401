"""Whole runs under ZeRO: those of one process without it, skips, stops, other layouts.

That the optimizer is exact is tested more sharply in `test_exact_lamb`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.datasets import make_dataset
from tests.support.ranks import run_on_ranks
from tests.support.recipes import tiny_deepspeed, tiny_recipe, write_recipe
from tests.support.runs import (
    pretrain_in_rank,
    pretrain_with_fp16_on_cpu,
)

pytestmark = pytest.mark.slow

NO_DROPOUT = ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"]
TOLERANCE = 1e-5
"""Of each tensor's norm, after 10 updates. Measured: 2.1e-6 at most."""
ZERO = "deepspeed.zero_optimization"
OFFLOAD = f'{ZERO}.offload_optimizer={{"device": "cpu"}}'


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zero")
    for length in (32, 64):
        make_dataset(folder / "data" / f"seq{length}", sequence_length=length, num_train=100)
    recipe = tiny_recipe()
    recipe["checkpoint"] = {"every_steps": 2, "keep_last": 9}
    deepspeed = tiny_deepspeed(12, 2)
    deepspeed["gradient_clipping"] = 0.5  # active: the norms are 1 to 2
    write_recipe(folder / "recipe", recipe, deepspeed)
    return folder


def train(
    place: Path,
    name: str,
    world_size: int,
    overrides: list[str],
    function: Callable[..., None] = pretrain_in_rank,
) -> Path:
    run = place / name
    run_on_ranks(world_size, function, place, place / "recipe", place / "data", run, overrides)
    return run


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in rows(run)]


def tensors(run: Path, file: str = "weights.safetensors") -> dict[str, torch.Tensor]:
    newest = run / "checkpoints" / (run / "checkpoints" / "latest").read_text().strip()
    return load_file(newest / file)


def largest_difference(run: Path, reference: Path) -> float:
    """Over all parameters, relative to the norm; the key bias is moved by rounding alone."""
    found, expected = tensors(run), tensors(reference)
    assert found.keys() == expected.keys()
    return max(
        float((found[name] - expected[name]).norm() / expected[name].norm().clamp(min=1e-6))
        for name in expected
        if not name.endswith("key.bias")
    )


@pytest.fixture(scope="module")
def reference(place: Path) -> Path:
    """One process, no ZeRO: LAMB over whole parameters."""
    return train(place, "reference", 1, NO_DROPOUT)


@pytest.mark.parametrize(
    ("world_size", "overrides"),
    [
        (3, [f"{ZERO}.stage=1", "execution.batch_layout=padded"]),
        (2, [f"{ZERO}.stage=3", OFFLOAD, "execution.recompute_every=1"]),
        (3, [f"{ZERO}.stage=2", OFFLOAD, "execution.batch_layout=packed"]),
        pytest.param(
            1,
            [f"{ZERO}.stage=1", "execution.compile=true", "execution.deterministic=true"],
            marks=pytest.mark.long,
        ),
    ],
    ids=lambda value: (
        value if isinstance(value, int) else "-".join(v.split(".")[-1] for v in value)
    ),
)
def test_weights_and_losses_are_those_of_one_process_without_zero(
    place: Path, reference: Path, world_size: int, overrides: list[str], tmp_path: Path
) -> None:
    run = train(place, tmp_path.name, world_size, [*NO_DROPOUT, *overrides])
    assert losses(run) == pytest.approx(losses(reference), rel=TOLERANCE)
    assert largest_difference(run, reference) < TOLERANCE
    for name in ("trust_ratio_min", "trust_ratio_median", "trust_ratio_max"):
        found_ratios = [row[name] for row in rows(run)]
        assert found_ratios == pytest.approx([row[name] for row in rows(reference)], rel=1e-4)
    norms = [row["grad_norm"] for row in rows(run)]
    assert norms == pytest.approx([row["grad_norm"] for row in rows(reference)], rel=1e-4)
    for name, moment in tensors(reference, "optimizer.safetensors").items():
        found = tensors(run, "optimizer.safetensors")[name]
        assert found.shape == moment.shape
        if "key.bias" not in name:
            assert (found - moment).norm() <= 1e-4 * moment.norm(), name


def test_fp16_skips_overflows_moves_no_counter_by_them_and_resumes_bit_for_bit(
    place: Path,
) -> None:
    fp16 = [
        'deepspeed.fp16={"enabled": true, "initial_scale_power": 24, "hysteresis": 1}',
        f"{ZERO}.stage=1",
        *NO_DROPOUT,
    ]
    run = train(place, "fp16", 2, fp16, pretrain_with_fp16_on_cpu)
    first = [row for row in rows(run) if row["phase"] == "phase1"]
    assert first[0]["loss_scale"] == 2.0**23  # 2^24 overflowed
    assert first[0]["global_step"] == 0
    skipped = first[-1]["skipped_steps"]
    assert skipped >= 1
    assert first[-1]["global_step"] == 6
    assert first[-1]["samples_seen"] == 12 * (6 + skipped)
    # the schedule counts applied updates: the rate of a skipped update is asked for again
    assert first[0]["learning_rate"] == first[1]["learning_rate"]

    copy = place / "fp16-resumed"
    shutil.copytree(run, copy)
    kept = "00-phase1-step00000004"
    for folder in (copy / "checkpoints").glob("*-step*"):
        if folder.name != kept:
            shutil.rmtree(folder)
    (copy / "checkpoints" / "latest").write_text(kept)
    train(place, copy.name, 2, fp16, pretrain_with_fp16_on_cpu)
    assert losses(copy) == losses(run)
    assert [row["loss_scale"] for row in rows(copy)] == [row["loss_scale"] for row in rows(run)]
    assert all(torch.equal(tensors(copy)[name], value) for name, value in tensors(run).items())


def test_gradients_that_overflow_at_the_lowest_loss_scale_end_the_run(place: Path) -> None:
    overflowing = [
        'deepspeed.fp16={"enabled": true, "initial_scale_power": 1, "hysteresis": 1}',
        f"{ZERO}.stage=1",
        "model.initializer_range=10000",
    ]
    message = (
        r"update 1: the gradients overflow at the lowest loss scale \(fp16.min_loss_scale\), loss "
        r"scale 1: the gradients of \d+ of \d+ parameters overflow, nearest to the loss: cls\."
    )
    with pytest.raises(AssertionError, match=message):
        train(place, "floor", 2, overflowing, pretrain_with_fp16_on_cpu)


def test_too_many_skips_in_a_row_end_the_run_also_with_a_static_scale(place: Path) -> None:
    """Under a static loss scale DeepSpeed itself would skip without end."""
    overflowing = [
        'deepspeed.fp16={"enabled": true, "loss_scale": 16777216}',
        f"{ZERO}.stage=2",
        "max_skipped_in_a_row=3",
    ]
    message = r"in as many updates as max_skipped_in_a_row allows, loss scale 16777216: .* cls\."
    with pytest.raises(AssertionError, match=message):
        train(place, "skips", 2, overflowing, pretrain_with_fp16_on_cpu)
    counted = rows(place / "skips")
    assert [row["skipped_steps"] for row in counted] == [1, 2]  # the third ended it


def test_the_loss_scale_waits_for_hysteresis_and_grows_again(place: Path) -> None:
    dynamic = [
        'deepspeed.fp16={"enabled": true, "initial_scale_power": 24, "hysteresis": 2,'
        ' "loss_scale_window": 2}',
        f"{ZERO}.stage=1",
        *NO_DROPOUT,
    ]
    run = train(place, "growth", 1, dynamic, pretrain_with_fp16_on_cpu)
    first = [row for row in rows(run) if row["phase"] == "phase1"]
    scales = [row["loss_scale"] for row in first]
    skipped = [b["skipped_steps"] > a["skipped_steps"] for a, b in pairwise(first)]
    assert scales[:2] == [2.0**24, 2.0**23]  # the first overflow uses up the hysteresis
    changes = {b / a: skip for (a, b), skip in zip(pairwise(scales), skipped, strict=True)}
    assert changes.keys() <= {0.5, 1.0, 2.0}
    assert changes[2.0] is False  # it grows after two updates without an overflow
    assert changes[0.5] is True


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2, f"{ZERO}.stage=1"), (1, f"{ZERO}.stage=3")),
        ((2, f"{ZERO}.stage=3"), (3, f"{ZERO}.stage=0")),
    ],
    ids=["2x1-to-1x3", "2x3-to-3x0"],
)
def test_a_run_goes_on_at_another_stage_and_world_size(
    place: Path, reference: Path, before: tuple[int, str], after: tuple[int, str], tmp_path: Path
) -> None:
    run = train(place, tmp_path.name, before[0], [*NO_DROPOUT, before[1]])
    kept = "00-phase1-step00000004"
    for folder in (run / "checkpoints").glob("*-step*"):
        if folder.name != kept:
            shutil.rmtree(folder)
    (run / "checkpoints" / "latest").write_text(kept)
    train(place, tmp_path.name, after[0], [*NO_DROPOUT, after[1]])
    assert losses(run) == pytest.approx(losses(reference), rel=TOLERANCE)
    assert largest_difference(run, reference) < TOLERANCE


def test_an_engine_whose_layout_is_not_known_is_refused(place: Path) -> None:
    overrides = [
        "deepspeed.bf16.enabled=true",
        f"{ZERO}.stage=1",
        'deepspeed.data_types={"grad_accum_dtype": "fp32"}',
    ]
    with pytest.raises(AssertionError, match="BF16_Optimizer, whose layout is not known"):
        train(place, "refused", 1, overrides)
