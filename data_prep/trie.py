"""The vocabulary as two trees of characters, for the longest piece that a word begins with.

A node and a character give the next node through a hash table. One tree holds the pieces as they
are, the other what follows `##` in continuations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from data_prep.compiled import compiled, integer
from data_prep.format import IntArray

CONTINUATION_PREFIX = "##"
WORD_ROOT, CONTINUATION_ROOT = 0, 1
_NODE_BITS = 21  # a code point needs no more
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class Trie(NamedTuple):
    """The trees.

    Attributes:
        keys: uint64 [power of 2], node and character of a slot, plus 1; 0 is an empty slot.
        children: int32 [as keys], the next node.
        pieces: int32 [nodes], the piece that ends at a node, or -1.
    """

    keys: npt.NDArray[np.uint64]
    children: npt.NDArray[np.int32]
    pieces: npt.NDArray[np.int32]


def make_trie(pieces: Sequence[str]) -> Trie:
    """The trees of a vocabulary; a piece's id is its index."""
    entries = [(WORD_ROOT, piece, index) for index, piece in enumerate(pieces)]
    entries += [
        (CONTINUATION_ROOT, piece[len(CONTINUATION_PREFIX) :], index)
        for index, piece in enumerate(pieces)
        if piece.startswith(CONTINUATION_PREFIX)
    ]
    lengths = np.array([len(text) for _, text, _ in entries], np.int64)
    codes = np.frombuffer("".join(text for _, text, _ in entries).encode("utf-32-le"), "<u4")
    slots = 1 << (2 * len(codes) + 2).bit_length()
    trie = Trie(
        np.zeros(slots, np.uint64),
        np.zeros(slots, np.int32),
        np.full(len(codes) + 2, -1, np.int32),
    )
    roots = np.array([root for root, _, _ in entries], np.int64)
    ids = np.array([index for _, _, index in entries], np.int64)
    nodes = _insert(codes.astype(np.int64), lengths, roots, ids, *trie)
    return trie._replace(pieces=trie.pieces[:nodes])


@compiled
def _insert(
    codes: IntArray,
    lengths: IntArray,
    roots: IntArray,
    ids: IntArray,
    keys: npt.NDArray[np.uint64],
    children: npt.NDArray[np.int32],
    pieces: npt.NDArray[np.int32],
) -> int:
    """Fills the arrays; returns the number of nodes."""
    nodes, place = 2, 0
    for entry in range(len(lengths)):
        node = roots[entry]
        for character in codes[place : place + lengths[entry]]:
            slot = find_slot(keys, node, character)
            if keys[slot] == 0:
                keys[slot] = np.uint64(((node << _NODE_BITS) | character) + 1)
                children[slot] = nodes
                nodes += 1
            node = integer(children[slot])
        place += lengths[entry]
        if lengths[entry] and pieces[node] < 0:
            pieces[node] = ids[entry]
    return nodes


@compiled
def find_slot(keys: npt.NDArray[np.uint64], node: int, character: int) -> int:
    """The slot of a node's child, or the empty one where it would be."""
    key = np.uint64(((node << _NODE_BITS) | character) + 1)
    mask = integer(len(keys) - 1)
    slot = integer((key * _MULTIPLIER) >> np.uint64(32)) & mask
    while keys[slot] != 0 and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot
