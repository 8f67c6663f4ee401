"""The vocabulary as two trees of characters, for the longest piece that a word begins with.

A node and a character give the next node through a hash table of one number a slot, so that it
stays small enough for the fast caches. One tree holds the pieces as they are, the other what
follows `##` in continuations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from data_prep.contract.compiled import compiled, integer
from data_prep.contract.errors import DataError
from data_prep.contract.format import IntArray

CONTINUATION_PREFIX = "##"
WORD_ROOT, CONTINUATION_ROOT = 0, 1
_BITS = 21  # of a code point, and of a node
_KEY_BITS = np.uint64(2 * _BITS + 1)
_KEY_MASK = (np.uint64(1) << _KEY_BITS) - np.uint64(1)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class Trie(NamedTuple):
    """The trees."""

    slots: npt.NDArray[np.uint64]
    """uint64 [power of 2], node and character plus 1 in the low bits, the next node in the
    high ones; 0 is an empty slot."""
    pieces: npt.NDArray[np.int32]
    """Int32 [nodes], the piece that ends at a node, or -1."""


def make_trie(pieces: Sequence[str]) -> Trie:
    """Return the trees of a vocabulary; a piece's id is its index.

    Raises:
        DataError: the vocabulary has millions of pieces.
    """
    entries = [(WORD_ROOT, piece, index) for index, piece in enumerate(pieces)]
    entries += [
        (CONTINUATION_ROOT, piece[len(CONTINUATION_PREFIX) :], index)
        for index, piece in enumerate(pieces)
        if piece.startswith(CONTINUATION_PREFIX)
    ]
    text = "".join(text for _, text, _ in entries).encode("utf-32-le")
    arguments = (
        np.frombuffer(text, "<u4").astype(np.int64),
        np.array([len(text) for _, text, _ in entries], np.int64),
        np.array([root for root, _, _ in entries], np.int64),
        np.array([index for _, _, index in entries], np.int64),
    )
    room = np.full(len(arguments[0]) + 2, -1, np.int32)
    nodes = _insert(*arguments, np.zeros(_slots(len(room)), np.uint64), room)
    if nodes >= 1 << _BITS:
        raise DataError(
            f"a vocabulary of {len(pieces)} pieces is too large: its prefixes must be fewer than "
            f"{1 << _BITS}."
        )
    trie = Trie(np.zeros(_slots(nodes), np.uint64), np.full(nodes, -1, np.int32))
    _insert(*arguments, *trie)
    return trie


def _slots(nodes: int) -> int:
    """Return slots for so many nodes, at most half of them filled."""
    return 1 << (2 * nodes - 1).bit_length()


@compiled
def _insert(
    codes: IntArray,
    lengths: IntArray,
    roots: IntArray,
    ids: IntArray,
    slots: npt.NDArray[np.uint64],
    pieces: npt.NDArray[np.int32],
) -> int:
    """Fill the arrays; return the number of nodes."""
    nodes, place = 2, 0
    for entry in range(len(lengths)):
        node = roots[entry]
        for character in codes[place : place + lengths[entry]]:
            child = next_node(slots, node, character)
            if child < 0:
                key = np.uint64(((node << _BITS) | character) + 1)
                slot = integer((key * _MULTIPLIER) >> np.uint64(32)) & (len(slots) - 1)
                while slots[slot]:
                    slot = (slot + 1) & (len(slots) - 1)
                slots[slot] = key | (np.uint64(nodes) << _KEY_BITS)
                child = nodes
                nodes += 1
            node = child
        place += lengths[entry]
        if lengths[entry] and pieces[node] < 0:
            pieces[node] = ids[entry]
    return nodes


@compiled
def next_node(slots: npt.NDArray[np.uint64], node: int, character: int) -> int:
    """Return the node that `character` leads to from `node`, or -1.

    Args:
        slots: see `Trie`.
        node: the node to start from.
        character: its code point.
    """
    key = np.uint64(((node << _BITS) | character) + 1)
    slot = integer((key * _MULTIPLIER) >> np.uint64(32)) & (len(slots) - 1)
    while slots[slot]:
        if slots[slot] & _KEY_MASK == key:
            return integer(slots[slot] >> _KEY_BITS)
        slot = (slot + 1) & (len(slots) - 1)
    return integer(-1)
