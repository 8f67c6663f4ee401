"""Rows out of pairs: [CLS] A [SEP] B [SEP], end to end, by array work.

Legend: n rows, T tokens of all rows, P masked positions of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data_prep.format import IntArray, spread
from data_prep.pairs import Pair


class Rows(NamedTuple):
    """Rows before masking.

    Attributes:
        tokens: piece ids [T].
        length: int64 [n].
        segment_a_length: int64 [n].
        label: uint8 [n].
    """

    tokens: IntArray
    length: IntArray
    segment_a_length: IntArray
    label: IntArray


def assemble(ids: IntArray, pairs: Sequence[Pair], cls_id: int, sep_id: int) -> Rows:
    """The rows of `pairs`.

    Args:
        ids: the flat piece ids the pairs point into.
        pairs: at least one.
        cls_id: id of [CLS].
        sep_id: id of [SEP].
    """
    spans = np.array(pairs, np.int64)
    starts, sizes = spans[:, [0, 2]], spans[:, [1, 3]] - spans[:, [0, 2]]
    length = sizes.sum(axis=1) + 3
    row_start = np.cumsum(length) - length
    segment_a_length = sizes[:, 0] + 2
    targets = np.stack([row_start + 1, row_start + segment_a_length], axis=1)
    tokens = np.full(int(length.sum()), sep_id, ids.dtype)
    tokens[row_start] = cls_id
    source = spread(starts.ravel(), sizes.ravel())
    tokens[spread(targets.ravel(), sizes.ravel())] = ids[source]
    return Rows(tokens, length, segment_a_length, spans[:, 4].astype(np.uint8))
