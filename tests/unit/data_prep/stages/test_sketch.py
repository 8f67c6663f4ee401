"""Repeated hashes: exact for a few, estimated for many, and never a matter of order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data_prep.stages.sketch import HashSketch


def test_a_few_hashes_are_counted_exactly() -> None:
    sketch = HashSketch()
    sketch.add(np.array([5, 6, 5, 7], np.uint64))
    sketch.add(np.array([7, 7], np.uint64))
    assert sketch.repeated() == 3
    assert HashSketch().repeated() == 0


def test_many_hashes_are_estimated_within_bounded_memory() -> None:
    sketch = HashSketch(2000)
    hashes = np.random.default_rng(0).integers(0, 2**64, 40_000, np.uint64)
    for part in np.split(np.concatenate([hashes, hashes[:10_000]]), 10):
        sketch.add(part)
    assert 1000 <= len(sketch.kept()) <= 2000
    assert abs(sketch.repeated() / 50_000 - 0.2) < 0.05


def test_one_hash_that_comes_very_often_is_counted_as_often() -> None:
    sketch = HashSketch(2000)
    for _ in range(10):
        sketch.add(np.full(10_000, 12345, np.uint64))
    assert sketch.repeated() == 100_000 - 1
    sketch.add(np.random.default_rng(1).integers(0, 2**64, 20_000, np.uint64))
    assert abs(sketch.repeated() - 100_000) < 2_000


@given(
    numbers=st.lists(st.integers(0, 60), max_size=80),
    cuts=st.lists(st.integers(0, 80), max_size=4),
    most=st.integers(1, 30),
)
def test_a_sketch_of_parts_is_that_of_the_whole(
    numbers: list[int], cuts: list[int], most: int
) -> None:
    hashes = np.array(numbers, np.uint64)
    whole, joined = HashSketch(most), HashSketch(most)
    whole.add(hashes)
    for part in np.split(hashes, sorted(min(cut, len(hashes)) for cut in cuts)):
        of_part = HashSketch(most)
        of_part.add(part[::-1])
        joined.merge(of_part.kept(), of_part.zeros, len(part))
    assert sorted(joined.kept()) == sorted(whole.kept())
    assert joined.zeros == whole.zeros
    assert joined.repeated() == whole.repeated()
