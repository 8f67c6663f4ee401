"""Keyed random numbers: fixed for ever, told apart by every part of the key."""

from __future__ import annotations

import numpy as np

from data_prep.randomness import keyed_generator, keyed_hash


def test_the_numbers_of_a_key_are_those_of_the_first_release() -> None:
    # A change here changes every dataset: prepared data could no longer be reproduced.
    assert keyed_hash(0, "bucket", 1, 2) == 7_075_754_600_964_019_511
    assert keyed_generator(0, "document", 1).random(2).tolist() == [
        0.8176864979970876,
        0.9631483444537228,
    ]


def test_every_part_of_a_key_counts() -> None:
    keys = [
        (0, "a", 1),
        (1, "a", 1),
        (0, "b", 1),
        (0, "a", 2),
        (0, "a"),
        (0, "a1"),
        (0, "", "a", 1),
    ]
    assert len({keyed_hash(*key) for key in keys}) == len(keys)
    assert len({keyed_generator(*key).random() for key in keys}) == len(keys)


def test_hashes_are_uniform() -> None:
    shares = np.array([keyed_hash("x", number) for number in range(10_000)]) / 2.0**64
    counts = np.histogram(shares, bins=10, range=(0, 1))[0]
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(900)
