"""Choosing and joining rows of ragged blocks, as array work.

A `Block` keeps its rows end to end; row i of `tokens` has `length[i]` entries, row i of the
predictions has `num_predictions[i]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from data_prep.format import Block


def concatenate_blocks(blocks: Sequence[Block]) -> Block:
    """The rows of all blocks, in order, as one block."""
    if len(blocks) == 1:
        return blocks[0]
    names = (
        "tokens", "length", "segment_a_length", "num_predictions",
        "masked_lm_positions", "masked_lm_ids", "pair_label",
    )  # fmt: skip
    fields = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in names}
    return Block(**fields, pair_label_name=blocks[0].pair_label_name)


def select_rows(block: Block, rows: npt.NDArray[np.int64]) -> Block:
    """The given rows of a block, in the given order.

    Args:
        block: the rows to choose from.
        rows: int64 [n], row numbers; they may repeat.
    """
    tokens = ragged_index(block.length, rows)
    predictions = ragged_index(block.num_predictions, rows)
    return Block(
        tokens=block.tokens[tokens],
        length=block.length[rows],
        segment_a_length=block.segment_a_length[rows],
        num_predictions=block.num_predictions[rows],
        masked_lm_positions=block.masked_lm_positions[predictions],
        masked_lm_ids=block.masked_lm_ids[predictions],
        pair_label=block.pair_label[rows],
        pair_label_name=block.pair_label_name,
    )


def ragged_index(lengths: npt.NDArray[Any], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where the entries of the given rows lie in an array that holds all rows end to end.

    Args:
        lengths: [n], entries of each row.
        rows: int64 [m], rows to look up.

    Returns:
        int64 [sum of lengths[rows]].
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    counts = lengths[rows].astype(np.int64)
    starts = ends[rows] - counts
    new_starts = np.cumsum(counts) - counts
    return np.repeat(starts - new_starts, counts) + np.arange(counts.sum(), dtype=np.int64)
