"""Thinning and smoothing of curves, so that the size of a page does not grow with the run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Curve(NamedTuple):
    """The n points of a curve."""

    x: Floats
    """float64 [n], ascending."""
    y: Floats
    """float64 [n]."""
    counts: NDArray[np.int64]
    """int64 [n], the number of records that each point stands for."""


def thin(x: Floats, y: Floats, max_points: int) -> Curve:
    """Thin a curve to at most `max_points` points, each the mean of x and of y over one bucket.

    Buckets are runs of neighbouring records, of equal size to within one. The first and the last
    record are buckets of their own, so the curve keeps its ends, and the mean of y weighted by
    `counts` is the mean of the records. Records whose y is not finite are left out.

    Args:
        x: float64 [n], ascending.
        y: float64 [n].
        max_points: at least 3.
    """
    finite = np.isfinite(y)
    x, y = x[finite], y[finite]
    if len(y) <= max_points:
        return Curve(x, y, np.ones(len(y), dtype=np.int64))
    inner = np.linspace(1, len(y) - 1, max_points - 1).astype(np.int64)
    starts = np.concatenate((np.zeros(1, dtype=np.int64), inner))
    counts = np.diff(np.append(starts, len(y)))
    return Curve(np.add.reduceat(x, starts) / counts, np.add.reduceat(y, starts) / counts, counts)


def running_mean(y: Floats, window: int) -> Floats:
    """Return the centred mean over `window` records (made odd), fewer at both ends; float64 [n]."""
    half = window // 2
    sums = np.concatenate((np.zeros(1), np.cumsum(y)))
    at = np.arange(len(y))
    low, high = np.maximum(at - half, 0), np.minimum(at + half + 1, len(y))
    means: Floats = (sums[high] - sums[low]) / (high - low)
    return means
