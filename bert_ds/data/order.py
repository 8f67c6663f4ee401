"""The order of training rows: an endless stream that is a function of (block counts, seed) alone.

Every epoch holds every row once, in a new order: the blocks of all shards are permuted, neighbours
in that permutation form a window, and the rows of a window are permuted. Preparation has already
mixed rows within its buckets, so a window of a few blocks is enough, and a rank that needs some
hundred rows of an update reads a few blocks and not the whole corpus.

The order does not depend on world size, micro batch, accumulation or the number of readers.
Permutations sort raw Philox output, a stream that NumPy promises not to change, so that a run can
be resumed under another version of NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from bert_ds.seeding import keyed_bits

IndexArray = npt.NDArray[np.int64]

BLOCKS_PER_WINDOW = 8  # 8 x 1,024 rows are mixed; about 2 MB at 128 tokens


@dataclass(frozen=True)
class WindowSlice:
    """Consecutive rows of the stream that lie in one window."""

    blocks: tuple[int, ...]
    """The window's block numbers, in the order in which their rows are counted."""
    rows: IndexArray
    """Row numbers, int64 [n], within the concatenated blocks, in stream order."""
    epoch: int
    """The epoch, from 0."""


class RowOrder:
    """Maps positions of the endless stream to rows of blocks."""

    def __init__(
        self, block_counts: Sequence[int], seed: int, blocks_per_window: int = BLOCKS_PER_WINDOW
    ) -> None:
        """Index the blocks.

        Args:
            block_counts: rows of each block, in manifest order.
            seed: the key of all permutations.
            blocks_per_window: blocks whose rows are mixed with each other.
        """
        self.block_counts = np.asarray(block_counts, dtype=np.int64)
        self._block_starts = np.cumsum(self.block_counts) - self.block_counts
        self.rows_per_epoch = int(self.block_counts.sum())
        if self.rows_per_epoch <= 0:
            raise ValueError("the order of no rows is not defined")
        self._seed = seed
        self._blocks_per_window = blocks_per_window
        self._windows_of_epoch = lru_cache(maxsize=2)(self._make_windows)
        self._rows_of_window = lru_cache(maxsize=4)(self._make_rows)

    def slices(self, start: int, stop: int) -> Iterator[WindowSlice]:
        """Yield the rows at stream positions [start, stop), cut where a window ends."""
        position = start
        while position < stop:
            epoch, offset = divmod(position, self.rows_per_epoch)
            windows, ends = self._windows_of_epoch(epoch)
            window = int(np.searchsorted(ends, offset, side="right"))
            begin = int(ends[window - 1]) if window else 0
            count = min(stop - position, int(ends[window]) - offset)
            rows = self._rows_of_window(epoch, window)
            part = rows[offset - begin : offset - begin + count]
            yield WindowSlice(windows[window], part, epoch)
            position += count

    def dataset_rows(self, part: WindowSlice) -> IndexArray:
        """Return the numbers of a slice's rows among all rows in manifest order; int64 [n]."""
        blocks = list(part.blocks)
        ends = np.cumsum(self.block_counts[blocks])
        # By block: its first row's number in manifest order less that within the window.
        shifts = self._block_starts[blocks] - (ends - self.block_counts[blocks])
        return np.asarray(part.rows + shifts[np.searchsorted(ends, part.rows, side="right")])

    def _make_windows(self, epoch: int) -> tuple[list[tuple[int, ...]], IndexArray]:
        blocks = permutation(len(self.block_counts), self._seed, "blocks", epoch)
        size = self._blocks_per_window
        windows = [tuple(map(int, blocks[i : i + size])) for i in range(0, len(blocks), size)]
        counts = [int(self.block_counts[list(window)].sum()) for window in windows]
        return windows, np.cumsum(counts, dtype=np.int64)

    def _make_rows(self, epoch: int, window: int) -> IndexArray:
        windows, _ = self._windows_of_epoch(epoch)
        count = int(self.block_counts[list(windows[window])].sum())
        return permutation(count, self._seed, "rows", epoch, window)


def permutation(count: int, *key: int | str) -> IndexArray:
    """Return a permutation of 0 to `count` - 1, int64 [count]; a function of `key` alone."""
    draws = np.random.Philox(key=keyed_bits(*key)).random_raw(count)
    return np.argsort(draws, kind="stable").astype(np.int64, copy=False)
