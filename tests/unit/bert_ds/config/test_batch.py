"""The batch identity, by example and by property."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_ds.config.batch import plan_batch
from bert_ds.errors import ConfigError


def test_accumulation_is_derived() -> None:
    plan = plan_batch(65536, 64, 256, "phase1")
    assert plan.gradient_accumulation_steps == 4
    assert plan.sequences_per_rank == 256


@given(micro=st.integers(1, 64), world_size=st.integers(1, 64), accumulation=st.integers(1, 64))
def test_the_product_of_the_parts_is_the_batch(
    micro: int, world_size: int, accumulation: int
) -> None:
    train = micro * world_size * accumulation
    plan = plan_batch(train, micro, world_size, "phase1")
    assert plan.gradient_accumulation_steps == accumulation
    assert plan.sequences_per_rank * plan.world_size == plan.train_batch_size == train


def test_a_batch_that_does_not_divide_names_the_numbers_and_both_ways_out() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_batch(1000, 64, 4, "phase1")
    assert str(caught.value) == (
        "phase1: train_batch_size (1000) must be a multiple of train_micro_batch_size_per_gpu (64) "
        "x world_size (4) = 256; set train_batch_size to 768 or 1024, or keep it and set "
        "train_micro_batch_size_per_gpu to 50 or 125"
    )


def test_a_world_larger_than_the_batch_is_refused_with_the_smallest_batch() -> None:
    with pytest.raises(
        ConfigError, match=r"set train_batch_size to 64, or take another .*32 is no"
    ):
        plan_batch(32, 1, 64, "phase1")


@given(train=st.integers(1, 5000), micro=st.integers(1, 200), world_size=st.integers(1, 64))
def test_every_number_that_an_error_names_is_a_way_out(
    train: int, micro: int, world_size: int
) -> None:
    try:
        plan_batch(train, micro, world_size, "phase1")
    except ConfigError as err:
        message = str(err)
    else:
        return
    batches, _, rest = message.partition("set train_batch_size to ")[2].partition(
        ", or keep it and set train_micro_batch_size_per_gpu to "
    )
    for batch in batches.split(", ")[0].split(" or "):
        assert plan_batch(int(batch), micro, world_size, "phase1")
    named = [int(size) for size in rest.split(" or ")] if rest else []
    for size in named:
        assert plan_batch(train, size, world_size, "phase1")
    between = range(min(named), max(named) + 1) if named else range(1, train + 1)
    others = [m for m in between if train % (m * world_size) == 0 and m not in named]
    assert not others


def test_a_stated_accumulation_that_disagrees_is_refused_with_the_product() -> None:
    with pytest.raises(ConfigError, match=r"gradient_accumulation_steps \(3\) must be .* = 2;"):
        plan_batch(16, 4, 2, "phase1", stated_accumulation=3)
