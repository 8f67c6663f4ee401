"""How many of very many hashes are repeated, in bounded memory.

Distinct hashes are kept, and only those whose lowest bits are zero: all of them until there are too
many, then half, then a quarter. What is kept in the end depends on the set of hashes alone, neither
on their order nor on how they were divided among tasks, and not on how often one of them comes: the
number of distinct ones is estimated, within some tenths of a percent, and the rest are repeated.

Source: Flajolet 1990, "On adaptive sampling".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

KEPT_HASHES = 1 << 22
"""Most hashes that are kept, of 8 bytes each; about as many wait to be sorted in."""
_FEWEST_WAITING = 1 << 16


class HashSketch:
    """Some of the distinct hashes that were added, and how many of all repeat another one.

    Args:
        most: how many are kept; equal for all sketches of which one is made.
    """

    def __init__(self, most: int = KEPT_HASHES) -> None:
        self._most = most
        self._kept = np.zeros(0, np.uint64)
        self._parts: list[Hashes] = []
        self._waiting = 0
        self._zeros = 0
        self._count = 0

    @property
    def zeros(self) -> int:
        """How many of the lowest bits are zero in what is kept."""
        self._sort_in()
        return self._zeros

    def add(self, hashes: Hashes) -> None:
        """Take in hashes, uint64 [n], of good quality in their lowest bits."""
        self._take(hashes, len(hashes))

    def merge(self, kept: Hashes, zeros: int, count: int) -> None:
        """Take in another sketch.

        Args:
            kept: the hashes that it has kept.
            zeros: its `zeros`.
            count: how many hashes were added to it.
        """
        self._zeros = max(self._zeros, zeros)
        self._take(kept, count)

    def _take(self, hashes: Hashes, count: int) -> None:
        self._count += count
        self._parts.append(hashes[self._is_kept(hashes)])
        self._waiting += len(self._parts[-1])
        # Sorting is worth it once as many wait as are kept, so that all adding takes n log n.
        if self._waiting >= max(_FEWEST_WAITING, len(self._kept)):
            self._sort_in()

    def kept(self) -> Hashes:
        """Return the distinct hashes that are kept, sorted."""
        self._sort_in()
        return self._kept

    def repeated(self) -> int:
        """Return how many hashes repeat an earlier one; an estimate where not all are kept."""
        return max(0, self._count - (len(self.kept()) << self._zeros))

    def _is_kept(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        return np.asarray(hashes & np.uint64((1 << self._zeros) - 1) == 0)

    def _sort_in(self) -> None:
        self._kept = np.unique(np.concatenate([self._kept, *self._parts]))
        self._kept = self._kept[self._is_kept(self._kept)]
        self._parts, self._waiting = [], 0
        while len(self._kept) > self._most:
            self._zeros += 1
            self._kept = self._kept[self._is_kept(self._kept)]
