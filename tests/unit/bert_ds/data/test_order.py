"""The order of rows: every row once an epoch, a function of (blocks, seed) alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_ds.data.order import RowOrder, permutation

Row = tuple[int, int]


def rows_between(order: RowOrder, start: int, stop: int) -> list[Row]:
    """(block, row in block) at each position of [start, stop)."""
    found: list[Row] = []
    for part in order.slices(start, stop):
        ends = np.cumsum([order.block_counts[block] for block in part.blocks])
        for row in part.rows:
            which = int(np.searchsorted(ends, row, side="right"))
            begin = int(ends[which - 1]) if which else 0
            found.append((part.blocks[which], int(row) - begin))
    return found


block_counts = st.lists(st.integers(1, 30), min_size=1, max_size=25)


@given(counts=block_counts, seed=st.integers(0, 2**32), epoch=st.integers(0, 3))
def test_an_epoch_holds_every_row_once(counts: list[int], seed: int, epoch: int) -> None:
    order = RowOrder(counts, seed, blocks_per_window=4)
    size = sum(counts)
    rows = rows_between(order, epoch * size, (epoch + 1) * size)
    assert sorted(rows) == [(b, r) for b, count in enumerate(counts) for r in range(count)]


@given(counts=block_counts, seed=st.integers(0, 2**32), start=st.integers(0, 900))
def test_rows_are_numbered_over_the_dataset_and_know_their_epoch(
    counts: list[int], seed: int, start: int
) -> None:
    order = RowOrder(counts, seed, blocks_per_window=4)
    begins = np.cumsum(counts) - counts
    stop = start + 2 * sum(counts)
    parts = list(order.slices(start, stop))
    numbers = np.concatenate([order.dataset_rows(part) for part in parts])
    expected = [int(begins[block]) + row for block, row in rows_between(order, start, stop)]
    assert numbers.tolist() == expected
    epochs = [part.epoch for part in parts for _ in part.rows]
    assert epochs == [position // sum(counts) for position in range(start, stop)]


@given(
    counts=block_counts,
    batch=st.integers(1, 20),
    world_size=st.sampled_from([1, 2, 3, 4, 7]),
    num_updates=st.integers(1, 12),
)
def test_the_union_over_ranks_is_the_stream_at_any_world_size(
    counts: list[int], batch: int, world_size: int, num_updates: int
) -> None:
    order = RowOrder(counts, 7, blocks_per_window=3)
    total = batch * world_size
    by_rank = []
    for update in range(num_updates):
        for rank in range(world_size):
            start = update * total + rank * batch
            by_rank += rows_between(order, start, start + batch)
    assert by_rank == rows_between(RowOrder(counts, 7, blocks_per_window=3), 0, num_updates * total)


def test_epochs_and_seeds_differ() -> None:
    counts = [8] * 10
    order = RowOrder(counts, seed=1)
    first, second = rows_between(order, 0, 80), rows_between(order, 80, 160)
    assert first != second
    assert first != rows_between(RowOrder(counts, seed=2), 0, 80)


def test_the_order_of_a_seed_never_changes() -> None:
    # Never to be changed: a checkpoint's position means these rows.
    assert permutation(8, 42, "blocks", 0).tolist() == [3, 1, 4, 6, 7, 0, 5, 2]
    assert rows_between(RowOrder([3, 2, 4], seed=42, blocks_per_window=2), 0, 9)[:6] == [
        (1, 0),
        (0, 2),
        (0, 0),
        (0, 1),
        (1, 1),
        (2, 2),
    ]


def test_rows_of_neighbouring_blocks_are_mixed() -> None:
    rows = rows_between(RowOrder([50] * 8, seed=3), 0, 100)
    assert len({block for block, _ in rows}) >= 6


def test_no_rows_have_no_order() -> None:
    with pytest.raises(ValueError, match="no rows"):
        RowOrder([], seed=0)
