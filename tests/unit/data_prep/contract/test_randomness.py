"""Keyed random numbers: the published generator, unchanged; every part of a key counts."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from data_prep.contract.compiled import plain
from data_prep.contract.randomness import (
    STREAM_WORDS,
    fill_words,
    keyed_hash,
    keyed_words,
    next_below,
    next_heads,
    next_is_below,
    next_word,
    philox,
    start_stream,
)
from tests.support import philox as reference


def stream_of(key: int, a: int = 0, b: int = 0, c: int = 0) -> np.ndarray:
    stream = np.empty(STREAM_WORDS, np.uint64)
    start_stream(stream, np.uint64(key), a, b, c)
    return stream


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # the known answers that the authors publish with Random123
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([2**32 - 1] * 4, [2**32 - 1] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_the_generator_gives_the_published_numbers(
    counter: list[int], key: list[int], expected: list[int]
) -> None:
    for function in (philox, plain(philox)):
        stream = np.array([*key, *counter, *[0] * 5], np.uint64)
        function(stream)
        assert stream[6:10].tolist() == expected
    assert reference.philox(key[0] | key[1] << 32, tuple(counter)) == expected


def test_a_stream_is_the_blocks_of_its_counter() -> None:
    key = 0x1234_5678_9ABC_DEF0
    stream = stream_of(key, 7, 8, 9)
    expected = list(islice(reference.words(key, 7, 8, 9), 11))
    assert [int(next_word(stream)) for _ in range(11)] == expected
    out = np.zeros(12, np.uint64)
    fill_words(stream_of(0), np.uint64(key), out, 11)
    assert out.tolist() == list(islice(reference.words(key), 12))


def test_the_numbers_of_a_key_are_those_of_the_first_release() -> None:
    # A change here changes every dataset: prepared data could no longer be reproduced.
    assert keyed_hash(0, "bucket", 1, 2) == 7_075_754_600_964_019_511
    found = keyed_words(np.uint64(5), 1, np.array([3], np.uint32), np.array([2**40], np.uint64))
    low, high = reference.philox(5, (0, 256, 3, 1))[:2]
    assert found.tolist() == [high << 32 | low] == [9_133_825_187_575_076_613]


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
    parts = [(5, 1, 3, 9), (6, 1, 3, 9), (5, 2, 3, 9), (5, 1, 4, 9), (5, 1, 3, 8), (5, 1, 3, 2**50)]
    numbers = [
        int(keyed_words(np.uint64(key), purpose, np.uint32([a]), np.uint64([b]))[0])
        for key, purpose, a, b in parts
    ]
    assert len(set(numbers)) == len(parts)
    streams = [(1, 0, 0, 0), (2**32, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1)]
    assert len({int(next_word(stream_of(*parts))) for parts in streams}) == len(streams)


def test_draws_are_uniform_and_within_their_limits() -> None:
    stream, count = stream_of(1), 20_000
    below = np.bincount([next_below(stream, 10) for _ in range(count)], minlength=10)
    assert len(below) == 10
    assert np.abs(below - count / 10).max() < 5 * np.sqrt(count * 0.09)
    hits = sum(next_is_below(stream, 0.3) for _ in range(count))
    assert abs(hits - 0.3 * count) < 5 * np.sqrt(count * 0.21)
    assert not any(next_is_below(stream, 0.0) for _ in range(100))
    assert all(next_is_below(stream, 1.0) for _ in range(100))


@pytest.mark.parametrize("coins", [0, 1, 31, 32, 33, 100])
def test_heads_are_those_of_fair_coins(coins: int) -> None:
    stream, count = stream_of(2), 2_000
    heads = np.array([next_heads(stream, coins) for _ in range(count)])
    assert np.all((heads >= 0) & (heads <= coins))
    assert abs(heads.mean() - coins / 2) <= 5 * np.sqrt(coins / 4 / count)
    assert abs(heads.var() - coins / 4) <= max(0.1, 0.2 * coins / 4)
