"""Sums over the rows of a split, as the manifest holds them."""

from __future__ import annotations

from collections.abc import Iterator

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
        self.histogram = np.zeros(sequence_length + 1, np.int64)
        """Rows by their number of tokens."""
        self.prediction_counts = np.zeros(vocabulary_size, np.int64)
        """How often each piece is to be predicted."""
        self.label_1 = 0

    def add(self, block: Block) -> None:
        """Adds the rows of a block that was checked."""
        self.histogram += np.bincount(block.length, minlength=len(self.histogram))
        self.prediction_counts += np.bincount(
            block.masked_lm_ids, minlength=len(self.prediction_counts)
        )
        if block.pair_label is not None:
            self.label_1 += int(block.pair_label.sum(dtype=np.int64))

    def counted(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """The blocks, added as they pass."""
        for block in blocks:
            self.add(block)
            yield block

    def totals(self) -> Totals:
        """The sums so far."""
        return make_totals(self.histogram, self.prediction_counts, self.label_1)


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
