"""Random numbers that depend on what they are for, never on who draws them.

Every stream is the counter generator Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers:
as easy as 1, 2, 3"): a key and a counter of four 32-bit words give four random words. The key says
whose numbers they are (seed and document), the counter which ones, so that any worker that handles
a document draws the same numbers for it, in every version of NumPy.

A stream is an array of `STREAM_WORDS` words that compiled functions carry along: see
`start_stream`.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from data_prep.contract.compiled import compiled, integer

STREAM_WORDS = 11
"""Two words of key, four of counter, four that were drawn, and how many of these are used."""

WordArray = npt.NDArray[np.uint64]

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


def keyed_hash(*key: str | int, bits: int = 64, separator: str = "\0") -> int:
    """Return a uniform number that is a function of `key` alone: BLAKE2b of its parts.

    Args:
        key: numbers and texts without the separator.
        bits: of the result, a multiple of 8.
        separator: between the parts. Streams with another one are other streams.
    """
    text = separator.join(map(str, key)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=bits // 8).digest(), "little")


@compiled
def philox(stream: WordArray) -> None:
    """Draw the four words of the key and counter that `stream` holds; see `start_stream`."""
    key_0, key_1 = stream[0], stream[1]
    word_0, word_1, word_2, word_3 = stream[2], stream[3], stream[4], stream[5]
    for _ in range(10):
        product_0, product_1 = _MULTIPLIER_0 * word_0, _MULTIPLIER_1 * word_2
        word_0 = (product_1 >> _SHIFT) ^ word_1 ^ key_0
        word_1 = product_1 & _LOW
        word_2 = (product_0 >> _SHIFT) ^ word_3 ^ key_1
        word_3 = product_0 & _LOW
        key_0, key_1 = (key_0 + _WEYL_0) & _LOW, (key_1 + _WEYL_1) & _LOW
    stream[6], stream[7], stream[8], stream[9] = word_0, word_1, word_2, word_3


@compiled
def start_stream(stream: WordArray, key: np.uint64, a: int, b: int, c: int) -> None:
    """Make `stream` the numbers of (key, a, b, c), from the first on.

    Args:
        stream: uint64 [STREAM_WORDS].
        key: 64 bits.
        a: below 2^32, as are b and c: which numbers of the key.
        b: see a.
        c: see a.
    """
    stream[0], stream[1] = key & _LOW, key >> _SHIFT
    stream[2], stream[3] = np.uint64(0), np.uint64(a)
    stream[4], stream[5] = np.uint64(b), np.uint64(c)
    stream[10] = np.uint64(4)


@compiled
def next_word(stream: WordArray) -> np.uint64:
    """Return the next number of a stream, uniform below 2^32."""
    used = integer(stream[10])
    if used == 4:
        philox(stream)
        stream[2] += np.uint64(1)
        used = 0
    stream[10] = np.uint64(used + 1)
    word: np.uint64 = stream[6 + used]
    return word


@compiled
def next_below(stream: WordArray, limit: int) -> int:
    """Return the next number of a stream, uniform in [0, limit), biased below limit / 2^32."""
    return integer((next_word(stream) * np.uint64(limit)) >> _SHIFT)


@compiled
def next_is_below(stream: WordArray, probability: float) -> bool:
    """Return True with `probability`, by the next number of a stream."""
    return float(next_word(stream)) < probability * 4294967296.0


@compiled
def next_heads(stream: WordArray, count: int) -> int:
    """Return how many of `count` fair coins show heads, by the next numbers of a stream."""
    heads, left = 0, count
    while left > 0:
        word = next_word(stream)
        if left < 32:
            word &= (np.uint64(1) << np.uint64(left)) - np.uint64(1)
        while word:
            word &= word - np.uint64(1)
            heads += 1
        left -= 32
    return heads


@compiled
def fill_words(stream: WordArray, key: np.uint64, out: WordArray, count: int) -> None:
    """Write the first numbers of (key, 0, 0, 0) to `out`; faster than one at a time.

    Args:
        stream: uint64 [STREAM_WORDS], used on the way.
        key: 64 bits.
        out: uint64 [at least `count` rounded up to a multiple of 4].
        count: how many.
    """
    start_stream(stream, key, 0, 0, 0)
    for place in range(0, count, 4):
        stream[2] = np.uint64(place >> 2)
        philox(stream)
        out[place], out[place + 1] = stream[6], stream[7]
        out[place + 2], out[place + 3] = stream[8], stream[9]


@compiled
def keyed_words(
    key: np.uint64,
    purpose: int,
    first: npt.NDArray[np.uint32],
    second: npt.NDArray[np.uint64],
) -> WordArray:
    """Return a uniform 64-bit number for every pair, a function of key, purpose and pair alone.

    Args:
        key: 64 bits.
        purpose: below 2^32, sets numbers for different purposes apart.
        first: uint32 [n].
        second: uint64 [n].

    Returns:
        uint64 [n].
    """
    found = np.empty(len(first), np.uint64)
    stream = np.empty(STREAM_WORDS, np.uint64)
    stream[0], stream[1] = key & _LOW, key >> _SHIFT
    for index in range(len(first)):
        stream[2], stream[3] = second[index] & _LOW, second[index] >> _SHIFT
        stream[4], stream[5] = np.uint64(first[index]), np.uint64(purpose)
        philox(stream)
        found[index] = (stream[7] << _SHIFT) | stream[6]
    return found
