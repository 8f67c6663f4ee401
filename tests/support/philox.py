"""Philox4x32-10 in plain Python, written from the paper, for tests of what draws from it."""

from __future__ import annotations

from collections.abc import Iterator

LOW = (1 << 32) - 1


def philox(key: int, counter: tuple[int, int, int, int]) -> list[int]:
    """Four words of a 64-bit key and a counter of four words."""
    x0, x1, x2, x3 = counter
    k0, k1 = key & LOW, key >> 32
    for _ in range(10):
        first, second = 0xD2511F53 * x0, 0xCD9E8D57 * x2
        x0, x1, x2, x3 = (
            (second >> 32) ^ x1 ^ k0,
            second & LOW,
            (first >> 32) ^ x3 ^ k1,
            first & LOW,
        )
        k0, k1 = (k0 + 0x9E3779B9) & LOW, (k1 + 0xBB67AE85) & LOW
    return [x0, x1, x2, x3]


def words(key: int, a: int = 0, b: int = 0, c: int = 0) -> Iterator[int]:
    """The stream of (key, a, b, c), without end."""
    block = 0
    while True:
        yield from philox(key, (block, a, b, c))
        block += 1
