"""Words to pieces, and the table of the words that the text has had so far.

Legend: a word is what lies between two blanks; its parts are what the tokeniser makes of it before
it looks for pieces.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from data_prep.contract.compiled import compiled, integer
from data_prep.contract.format import IntArray, UnsignedArray
from data_prep.pieces import characters as ch
from data_prep.pieces.characters import Characters, decode
from data_prep.pieces.trie import CONTINUATION_ROOT, WORD_ROOT, Trie, next_node
from data_prep.pieces.word_rules import HAS_UNKNOWN

LONGEST_WORD = 100
"""Characters; a longer part is [UNK]."""
CACHED_BYTES = 64
"""Bytes of the longest word in the table; longer ones hardly come twice."""
MIX_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_WORD_SLOTS, _MOST_WORDS = 1 << 20, 1 << 19
_WORD_BYTES, _WORD_PIECES = 1 << 24, 1 << 22


class WordTable(NamedTuple):
    """Distinct words and what was worked out about them."""

    slots: npt.NDArray[np.int32]
    """int32 [power of 2], word number + 1, or 0."""
    entries: npt.NDArray[np.uint64]
    """uint64 [4 * words], packed as described below."""
    unknown_uses: IntArray
    """int64 [words], how often a word with unknown characters was found in the text."""
    text: npt.NDArray[np.uint8]
    """uint8, bytes of all words."""
    pieces: npt.NDArray[np.int32]
    """int32, pieces of all words."""
    used: IntArray
    """int64 [4], at `WORDS`, `BYTES`, `PIECES` how much of the table is filled, and at `REFUSED`
    the words that had no room. The commonest words come first, so a full table keeps them until it
    has refused as many others."""


WORDS, BYTES, PIECES, REFUSED = range(4)
"""Places in `WordTable.used`."""

# An entry is four numbers of 64 bits, half a line of the cache, so that looking a word up touches
# one line. It is read and written by the functions below and by nothing else:
#
#   number   bits    holds                              read by
#   0        0..63   the hash of the word               entry_hash
#   1        0..31   where its bytes begin in `text`    entry_text
#            32..63  where its pieces begin in `pieces` entry_pieces
#   2        0..7    how many bytes it has              entry_size
#            8..15   how many pieces it has             entry_num_pieces
#            16..    its bits, see `word_rules`         entry_bits
#   3                nothing
_ENTRY = 4
_HALF = np.uint64(32)


@compiled
def entry_hash(entries: npt.NDArray[np.uint64], number: int) -> np.uint64:
    """Return the hash of a word."""
    return np.uint64(entries[_ENTRY * number])


@compiled
def entry_text(entries: npt.NDArray[np.uint64], number: int) -> int:
    """Return where the bytes of a word begin in `WordTable.text`."""
    return integer(entries[_ENTRY * number + 1]) & 0xFFFFFFFF


@compiled
def entry_pieces(entries: npt.NDArray[np.uint64], number: int) -> int:
    """Return where the pieces of a word begin in `WordTable.pieces`."""
    return integer(entries[_ENTRY * number + 1] >> _HALF)


@compiled
def entry_size(entries: npt.NDArray[np.uint64], number: int) -> int:
    """Return how many bytes a word has."""
    return integer(entries[_ENTRY * number + 2]) & 0xFF


@compiled
def entry_num_pieces(entries: npt.NDArray[np.uint64], number: int) -> int:
    """Return how many pieces a word has."""
    return (integer(entries[_ENTRY * number + 2]) >> 8) & 0xFF


@compiled
def entry_bits(entries: npt.NDArray[np.uint64], number: int) -> int:
    """Return the bits of a word."""
    return integer(entries[_ENTRY * number + 2]) >> 16


@compiled
def _write_entry(
    table: WordTable, number: int, hashed: np.uint64, size: int, num_pieces: int, bits: int
) -> None:
    """Write the entry of a word whose bytes and pieces go to the end of those in use."""
    text_start, pieces_start = table.used[BYTES], table.used[PIECES]
    table.entries[_ENTRY * number] = hashed
    table.entries[_ENTRY * number + 1] = np.uint64(text_start | (pieces_start << 32))
    table.entries[_ENTRY * number + 2] = np.uint64(size | (num_pieces << 8) | (bits << 16))


def make_word_table() -> WordTable:
    """Return an empty table; memory is taken as words come."""
    return WordTable(
        slots=np.zeros(_WORD_SLOTS, np.int32),
        entries=np.empty(_ENTRY * _MOST_WORDS, np.uint64),
        unknown_uses=np.empty(_MOST_WORDS, np.int64),
        text=np.empty(_WORD_BYTES, np.uint8),
        pieces=np.empty(_WORD_PIECES, np.int32),
        used=np.zeros(4, np.int64),
    )


@compiled
def find_word(
    data: npt.NDArray[np.uint8],
    place: int,
    size: int,
    hashed: np.uint64,
    slots: npt.NDArray[np.int32],
    entries: npt.NDArray[np.uint64],
    text: npt.NDArray[np.uint8],
) -> int:
    """Return the number of a word in the table, or -1.

    Args:
        data: UTF-8 that holds the word.
        place: first byte of the word.
        size: its bytes.
        hashed: the hash of these bytes.
        slots: see `WordTable`, as `entries` and `text`.
        entries: see slots.
        text: see slots.
    """
    mask = integer(len(slots) - 1)
    slot = integer((hashed * MIX_MULTIPLIER) >> np.uint64(32)) & mask
    while slots[slot]:
        number = integer(slots[slot]) - 1
        if entry_hash(entries, number) == hashed and entry_size(entries, number) == size:
            start, index = entry_text(entries, number), 0
            while index < size and text[start + index] == data[place + index]:
                index += 1
            if index == size:
                return number
        slot = (slot + 1) & mask
    return integer(-1)


@compiled
def has_room(table: WordTable, size: int, count: int) -> bool:
    """Return whether a word fits into the table.

    Args:
        table: the table.
        size: bytes of the word.
        count: its pieces.
    """
    number, text_start, pieces_start = table.used[WORDS], table.used[BYTES], table.used[PIECES]
    return bool(
        number < len(table.unknown_uses)
        and text_start + size <= len(table.text)
        and pieces_start + count <= len(table.pieces)
    )


@compiled
def remember(
    data: npt.NDArray[np.uint8],
    place: int,
    size: int,
    hashed: np.uint64,
    bits: int,
    table: WordTable,
    ids: UnsignedArray,
    id_start: int,
    id_end: int,
) -> None:
    """Put a word into the table, which has room for it.

    Args:
        data: UTF-8 that holds the word.
        place: first byte of the word.
        size: its bytes.
        hashed: the hash of these bytes.
        bits: what the word is, see `word_rules`.
        table: gets the word.
        ids: holds its pieces.
        id_start: index of the first piece in `ids`.
        id_end: index after the last one.
    """
    number, text_start, pieces_start = table.used[WORDS], table.used[BYTES], table.used[PIECES]
    slots, text, pieces = table.slots, table.text, table.pieces
    mask = integer(len(slots) - 1)
    slot = integer((hashed * MIX_MULTIPLIER) >> np.uint64(32)) & mask
    while slots[slot]:
        slot = (slot + 1) & mask
    slots[slot] = number + 1
    table.unknown_uses[number] = 0
    _write_entry(table, number, hashed, size, id_end - id_start, bits)
    for index in range(size):
        text[text_start + index] = data[place + index]
    for index in range(id_end - id_start):
        pieces[pieces_start + index] = ids[id_start + index]
    table.used[WORDS], table.used[BYTES] = number + 1, text_start + size
    table.used[PIECES] = pieces_start + id_end - id_start


@compiled
def settle_unknown(characters: Characters, trie: Trie, table: WordTable, unknown: IntArray) -> None:
    """Add the unknown characters of the words in the table, as often as each word was found.

    Args:
        characters: what each character is.
        trie: the vocabulary.
        table: the words; its `unknown_uses` are set back to 0.
        unknown: int64 [0x110000], gets the counts.
    """
    entries = table.entries
    for number in range(table.used[WORDS]):
        uses = table.unknown_uses[number]
        if entry_bits(entries, number) & HAS_UNKNOWN and uses:
            start = entry_text(entries, number)
            end = start + entry_size(entries, number)
            count_unknown(table.text, start, end, characters, trie, unknown, uses)
            table.unknown_uses[number] = 0


@compiled
def count_unknown(
    data: npt.NDArray[np.uint8],
    place: int,
    end: int,
    characters: Characters,
    trie: Trie,
    unknown: IntArray,
    uses: int,
) -> None:
    """Add `uses` for every normalised character of a word that no piece begins with.

    Args:
        data: UTF-8 that holds the word.
        place: first byte of the word.
        end: the byte after it.
        characters: what each character is.
        trie: the vocabulary.
        unknown: int64 [0x110000], gets the counts.
        uses: how often the word was found.
    """
    while place < end:
        code, place = decode(data, place)
        if characters.flags[code] & ch.REMOVED:
            continue
        first = integer(characters.start[code])
        for index in range(first, first + integer(characters.size[code])):
            kind = integer(characters.pool[index])
            character = kind & (ch.PUNCTUATION - 1)
            is_known = (
                next_node(trie.slots, WORD_ROOT, character) >= 0
                or next_node(trie.slots, CONTINUATION_ROOT, character) >= 0
            )
            if not kind & ch.BREAK and not is_known:
                unknown[character] += uses


@compiled
def tokenise_word(
    data: npt.NDArray[np.uint8],
    place: int,
    end: int,
    unknown_id: int,
    characters: Characters,
    trie: Trie,
    word: IntArray,
    ids: UnsignedArray,
    id_place: int,
) -> tuple[int, bool]:
    """Write the pieces of what lies between two blanks.

    Args:
        data: UTF-8 that holds it.
        place: its first byte.
        end: the byte after it.
        unknown_id: id of [UNK].
        characters: what each character is.
        trie: the vocabulary.
        word: room for the characters of one word.
        ids: gets the pieces.
        id_place: index of the first piece in `ids`.

    Returns:
        The place after them, and whether one is [UNK].
    """
    flags, starts, sizes, pool = (
        characters.flags,
        characters.start,
        characters.size,
        characters.pool,
    )
    size, has_unknown, is_unknown = 0, False, False
    while place < end:
        code, place = decode(data, place)
        if flags[code] & ch.REMOVED:
            continue
        first = integer(starts[code])
        for index in range(first, first + integer(sizes[code])):
            kind = integer(pool[index])
            if kind >= ch.PUNCTUATION:
                id_place, is_unknown = _write_pieces(word, size, unknown_id, trie, ids, id_place)
                has_unknown |= is_unknown
                size = 0
                if kind & ch.PUNCTUATION:
                    word[0] = kind & (ch.PUNCTUATION - 1)
                    id_place, is_unknown = _write_pieces(word, 1, unknown_id, trie, ids, id_place)
                    has_unknown |= is_unknown
            else:
                word[min(size, LONGEST_WORD)] = kind
                size += 1
    id_place, is_unknown = _write_pieces(word, size, unknown_id, trie, ids, id_place)
    return id_place, has_unknown | is_unknown


@compiled
def _write_pieces(
    word: IntArray, size: int, unknown_id: int, trie: Trie, ids: UnsignedArray, id_place: int
) -> tuple[int, bool]:
    """Write the pieces of a word, the longest first, or [UNK].

    Returns:
        The place after them, and whether it is [UNK].
    """
    slots, pieces = trie.slots, trie.pieces
    start, root, before = 0, WORD_ROOT, id_place
    while start < size <= LONGEST_WORD:
        node, piece, after = root, -1, start
        for place in range(start, size):
            node = next_node(slots, node, word[place])
            if node < 0:
                break
            if pieces[node] >= 0:
                piece, after = integer(pieces[node]), place + 1
        if piece < 0:
            break
        ids[id_place] = piece
        id_place += 1
        start, root = after, CONTINUATION_ROOT
    if start < size:
        ids[before] = unknown_id
        return before + 1, True
    return id_place, False
