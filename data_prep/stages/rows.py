"""Rows out of pairs: [CLS] A [SEP] B [SEP], or [CLS] A [SEP], end to end.

Legend: n rows, T tokens of all rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from data_prep.contract.compiled import compiled
from data_prep.contract.format import IntArray, UnsignedArray
from data_prep.stages.pairs import Pairs


class AssembledRows(NamedTuple):
    """Rows before masking."""

    tokens: UnsignedArray
    """Piece ids [T], as the ids they are made of."""
    length: IntArray
    """int64 [n]."""
    segment_a_length: IntArray
    """int64 [n]; `length` where there is no B."""


def row_lengths(pairs: Pairs) -> IntArray:
    """Return tokens of each row, int64 [n]."""
    return np.asarray(pairs.a_length + pairs.b_length + np.where(pairs.b_length > 0, 3, 2))


def assemble(ids: UnsignedArray, pairs: Pairs, cls_id: int, sep_id: int) -> AssembledRows:
    """Return the rows of `pairs`.

    Args:
        ids: the flat piece ids the pairs point into.
        pairs: spans.
        cls_id: id of [CLS].
        sep_id: id of [SEP].
    """
    length = row_lengths(pairs)
    tokens = np.empty(int(length.sum()), ids.dtype)
    _fill(ids, pairs.a_start, pairs.a_length, pairs.b_start, pairs.b_length, cls_id, sep_id, tokens)
    return AssembledRows(tokens, length, pairs.a_length + 2)


@compiled
def _fill(
    ids: UnsignedArray,
    a_start: IntArray,
    a_length: IntArray,
    b_start: IntArray,
    b_length: IntArray,
    cls_id: int,
    sep_id: int,
    tokens: UnsignedArray,
) -> None:
    """Write the rows."""
    place = 0
    for row in range(len(a_start)):
        tokens[place] = cls_id
        place += 1
        for token in range(a_start[row], a_start[row] + a_length[row]):
            tokens[place] = ids[token]
            place += 1
        tokens[place] = sep_id
        place += 1
        if b_length[row] == 0:
            continue
        for token in range(b_start[row], b_start[row] + b_length[row]):
            tokens[place] = ids[token]
            place += 1
        tokens[place] = sep_id
        place += 1
