"""Cuts one rank's rows of one update into micro batches, in the layout that a run asks for.

`unpadded` and `padded` cut the rows in stream order into micro batches of `micro_batch_size` rows.
`packed` fills each micro batch up to the tokens of that many full rows, by first-fit in order of
falling length (Johnson 1973, "Near-optimal bin packing algorithms"): fewer micro batches, all of
one shape. Which rows are computed together does not change an update, since its loss is a mean over
all its rows; and ranks may have different numbers of packed micro batches, which `train.counts`
evens out with empty ones.
"""

from __future__ import annotations

import numpy as np

from bert_ds.batch import Batch
from bert_ds.config.recipe import BatchLayout
from bert_ds.data.collate import collate, pack
from bert_ds.data.row_copy import Window, cut_rows, take_rows
from data_prep.contract.compiled import compiled
from data_prep.contract.format import Block, IntArray


def micro_batches(
    rows: Block, layout: BatchLayout, micro_batch_size: int, sequence_length: int
) -> tuple[Batch, ...]:
    """Cut the rows of an update into micro batches.

    Args:
        rows: the rows, at least 1.
        layout: how the rows of a micro batch lie.
        micro_batch_size: rows of a micro batch; packed, the full rows that it has room for.
        sequence_length: tokens of a full row; no row is longer.

    Returns:
        ceil(rows / micro_batch_size) micro batches or, packed, at most that many.
    """
    if layout == "packed":
        capacity = micro_batch_size * sequence_length
        places = first_fit(rows.length.astype(np.int64), capacity)
        window = Window(rows)
        return tuple(
            pack(take_rows([(window, np.flatnonzero(places == number))]), capacity, sequence_length)
            for number in range(int(places.max()) + 1)
        )
    make = collate if layout == "padded" else pack
    return tuple(make(part) for part in cut_rows(rows, micro_batch_size))


def empty_micro_batch(like: Block, micro_batch_size: int, sequence_length: int) -> Batch:
    """Return a packed micro batch without rows, for a rank with fewer than another rank.

    Args:
        like: any rows of the dataset, for their dtypes.
        micro_batch_size: see `micro_batches`.
        sequence_length: see `micro_batches`.
    """
    nothing = take_rows([(Window(like), np.empty(0, np.int64))])
    return pack(nothing, micro_batch_size * sequence_length, sequence_length)


def first_fit(lengths: IntArray, capacity: int) -> IntArray:
    """Assign rows to micro batches: the longest row first, each to the first that has room.

    Args:
        lengths: int64 [n], tokens of each row, at most `capacity`.
        capacity: tokens that a micro batch has room for.

    Returns:
        int64 [n], the number of each row's micro batch, from 0 without a gap.
    """
    order = np.argsort(-lengths, kind="stable")
    places = np.empty(len(lengths), np.int64)
    _fit(lengths, order, capacity, places)
    return places


@compiled
def _fit(lengths: IntArray, order: IntArray, capacity: int, places: IntArray) -> None:
    """Fill `places`; skip the leading micro batches that have no room for the shortest row."""
    room = np.empty(len(lengths), np.int64)
    first_open = num_open = 0
    for row in order:
        place = first_open
        while place < num_open and room[place] < lengths[row]:
            place += 1
        if place == num_open:
            room[place] = capacity
            num_open += 1
        room[place] -= lengths[row]
        places[row] = place
        while first_open < num_open and room[first_open] < lengths[order[-1]]:
            first_open += 1
