"""Copies rows out of decoded blocks, many at a time, by compiled code.

`data_prep.contract.format.select_rows` is the plain version, which tests compare with this one. It
is slower because it looks up every token by its own index, and finds the start of every row of the
block each time.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from data_prep.contract.compiled import compiled
from data_prep.contract.format import Block, IntArray, UnsignedArray


class Window:
    """Some rows, and where each of them begins."""

    def __init__(self, rows: Block) -> None:
        self.rows = rows
        """The n rows."""
        self.token_starts = starts_of(rows.length)
        """The first token of each row, and the number of tokens; int64 [n + 1]."""
        self.prediction_starts = starts_of(rows.num_predictions)
        """The first masked position of each row, and the number of them; int64 [n + 1]."""


def starts_of(sizes: UnsignedArray) -> IntArray:
    """Return where spans of these sizes, laid end to end, begin, and the end; int64 [n + 1]."""
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def take_rows(parts: Iterable[tuple[Window, IntArray]]) -> Block:
    """Return rows of one or several windows, in the given order, as a block of their own.

    Args:
        parts: windows, at least one, each with the numbers of the rows to take, int64 [m].
    """
    chosen = [(window, rows, window.rows) for window, rows in parts]
    first = chosen[0][2]
    length = np.concatenate([block.length[rows] for _, rows, block in chosen])
    num_predictions = np.concatenate([block.num_predictions[rows] for _, rows, block in chosen])
    labels = [b.pair_label[rows] for _, rows, b in chosen if b.pair_label is not None]
    tokens = np.empty(int(length.sum(dtype=np.int64)), first.tokens.dtype)
    num_masked = int(num_predictions.sum(dtype=np.int64))
    positions = np.empty(num_masked, first.masked_lm_positions.dtype)
    ids = np.empty(num_masked, first.masked_lm_ids.dtype)
    token_place = masked_place = 0
    for window, rows, block in chosen:
        token_place = _copy_spans(block.tokens, window.token_starts, rows, tokens, token_place)
        if num_masked:
            starts = window.prediction_starts
            _copy_spans(block.masked_lm_positions, starts, rows, positions, masked_place)
            masked_place = _copy_spans(block.masked_lm_ids, starts, rows, ids, masked_place)
    return Block(
        tokens=tokens,
        length=length,
        segment_a_length=np.concatenate([b.segment_a_length[rows] for _, rows, b in chosen]),
        num_predictions=num_predictions,
        masked_lm_positions=positions,
        masked_lm_ids=ids,
        pair_label=np.concatenate(labels) if labels else None,
        pair_label_name=first.pair_label_name,
    )


def cut_rows(block: Block, size: int) -> list[Block]:
    """Cut a block into pieces of `size` rows, the last one perhaps smaller; arrays are views."""
    token_starts, masked_starts = starts_of(block.length), starts_of(block.num_predictions)
    pieces = []
    for start in range(0, len(block), size):
        stop = min(start + size, len(block))
        rows = slice(start, stop)
        masked = slice(int(masked_starts[start]), int(masked_starts[stop]))
        pieces.append(
            Block(
                tokens=block.tokens[int(token_starts[start]) : int(token_starts[stop])],
                length=block.length[rows],
                segment_a_length=block.segment_a_length[rows],
                num_predictions=block.num_predictions[rows],
                masked_lm_positions=block.masked_lm_positions[masked],
                masked_lm_ids=block.masked_lm_ids[masked],
                pair_label=None if block.pair_label is None else block.pair_label[rows],
                pair_label_name=block.pair_label_name,
            )
        )
    return pieces


@compiled
def _copy_spans(
    values: UnsignedArray, starts: IntArray, rows: IntArray, taken: UnsignedArray, place: int
) -> int:
    """Copy the spans of some rows to `taken` from `place` on; return the place after them."""
    for index in range(len(rows)):
        start = starts[rows[index]]
        size = starts[rows[index] + 1] - start
        taken[place : place + size] = values[start : start + size]
        place += size
    return place
