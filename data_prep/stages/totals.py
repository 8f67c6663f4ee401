"""Sums over the rows of a split, as the manifest holds them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from data_prep.contract.compiled import compiled, integer
from data_prep.contract.format import Block, IntArray, UnsignedArray
from data_prep.contract.manifest import Totals
from data_prep.pieces.scan import finish_hash, hash_piece
from data_prep.stages.sketch import Hashes, HashSketch


class RowSums(NamedTuple):
    """What a `TotalsSummer` holds, to be added to another one."""

    histogram: IntArray
    """int64 [sequence_length + 1], rows by their number of tokens."""
    prediction_counts: IntArray
    """int64 [pieces], how often each piece is to be predicted."""
    label_1: int
    """Rows with label 1."""
    unknown: int
    """[UNK] in the text, masked positions included."""
    row_hashes: Hashes
    """Hashes of the rows that a sketch has kept."""
    zeros: int
    """The `zeros` of the sketch that has kept the hashes."""


class TotalsSummer:
    """Sums over blocks, as the manifest holds them.

    Args:
        sequence_length: the most tokens of a row.
        vocabulary_size: number of pieces.
        unknown_id: id of [UNK].
    """

    def __init__(self, sequence_length: int, vocabulary_size: int, unknown_id: int) -> None:
        self._unknown_id = unknown_id
        self.histogram = np.zeros(sequence_length + 1, np.int64)
        """Rows by their number of tokens."""
        self.prediction_counts = np.zeros(vocabulary_size, np.int64)
        """How often each piece is to be predicted."""
        self.label_1 = 0
        self.unknown = 0
        """[UNK] in the text, masked positions included."""
        self.rows = HashSketch()
        """Hashes of the rows as they were before they were masked."""

    def add(self, block: Block) -> None:
        """Add the rows of a block that was checked."""
        self.histogram += np.bincount(block.length, minlength=len(self.histogram))
        self.prediction_counts += np.bincount(
            block.masked_lm_ids, minlength=len(self.prediction_counts)
        )
        if block.pair_label is not None:
            self.label_1 += int(block.pair_label.sum(dtype=np.int64))
        hashes = np.empty(len(block), np.uint64)
        self.unknown += _hash_rows(
            block.tokens,
            block.length,
            block.num_predictions,
            block.masked_lm_positions,
            block.masked_lm_ids,
            self._unknown_id,
            hashes,
        )
        self.rows.add(hashes)

    def count_rows(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """Yield the blocks, added as they pass."""
        for block in blocks:
            self.add(block)
            yield block

    def merge(self, other: RowSums) -> None:
        """Add the sums over other rows."""
        self.histogram += other.histogram
        self.prediction_counts += other.prediction_counts
        self.label_1 += other.label_1
        self.unknown += other.unknown
        self.rows.merge(other.row_hashes, other.zeros, int(other.histogram.sum()))

    def totals(self) -> Totals:
        """Return the sums so far."""
        commonest = int(self.prediction_counts.argmax())
        return Totals(
            rows=int(self.histogram.sum()),
            tokens=int(self.histogram @ np.arange(len(self.histogram))),
            predictions=int(self.prediction_counts.sum()),
            label_1=self.label_1,
            length_histogram=tuple(self.histogram.tolist()),
            commonest_prediction_id=commonest,
            commonest_prediction_count=int(self.prediction_counts[commonest]),
            unknown=self.unknown,
            repeated_rows=self.rows.repeated(),
        )


@compiled
def _hash_rows(
    tokens: UnsignedArray,
    length: UnsignedArray,
    num_predictions: UnsignedArray,
    positions: UnsignedArray,
    ids: UnsignedArray,
    unknown_id: int,
    hashes: Hashes,
) -> int:
    """Write a hash of every row with the original pieces in place; return how many are [UNK]."""
    unknown = place = masked = 0
    for row in range(len(length)):
        hashed = np.uint64(0)
        row_length, last_masked = integer(length[row]), masked + integer(num_predictions[row])
        for position in range(row_length):
            token = integer(tokens[place + position])
            if masked < last_masked and integer(positions[masked]) == position:
                token = integer(ids[masked])
                masked += 1
            if token == unknown_id:
                unknown += 1
            hashed = hash_piece(hashed, np.uint64(token))
        hashes[row] = finish_hash(hashed)
        place, masked = place + row_length, last_masked
    return unknown
