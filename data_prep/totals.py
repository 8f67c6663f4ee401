"""Sums over the rows of a split, as the manifest holds them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from data_prep.format import Block
from data_prep.manifest import Totals


class TotalsSummer:
    """Sums over blocks, as the manifest holds them.

    Args:
        sequence_length: the most tokens of a row.
        vocabulary_size: number of pieces.
    """

    def __init__(self, sequence_length: int, vocabulary_size: int) -> None:
        self._histogram = np.zeros(sequence_length + 1, np.int64)
        self._counts = np.zeros(vocabulary_size, np.int64)
        self._label_1 = 0

    def add(self, block: Block) -> None:
        """Adds the rows of a block that was checked."""
        self._histogram += np.bincount(block.length, minlength=len(self._histogram))
        self._counts += np.bincount(block.masked_lm_ids, minlength=len(self._counts))
        self._label_1 += int(block.pair_label.sum(dtype=np.int64))

    def totals(self) -> Totals:
        """The sums so far."""
        return make_totals(self._histogram, self._counts, self._label_1)


def make_totals(
    histogram: npt.NDArray[np.int64], prediction_counts: npt.NDArray[np.int64], label_1: int
) -> Totals:
    """Totals out of a length histogram and how often each piece is to be predicted."""
    commonest = int(prediction_counts.argmax())
    return Totals(
        rows=int(histogram.sum()),
        tokens=int(histogram @ np.arange(len(histogram))),
        predictions=int(prediction_counts.sum()),
        label_1=label_1,
        length_histogram=tuple(histogram.tolist()),
        commonest_prediction_id=commonest,
        commonest_prediction_count=int(prediction_counts[commonest]),
    )
