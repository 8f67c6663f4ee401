"""What a word is to the sentence rules, as bits; see `data_prep.text.sentences` for the rules.

Whether a sentence ends between two words depends on the bits of the two, so these are worked out
once for each distinct word.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from data_prep.contract.compiled import compiled, integer
from data_prep.contract.format import IntArray
from data_prep.pieces import characters as ch
from data_prep.pieces.characters import decode
from data_prep.text.sentences import ABBREVIATIONS, LOOK, MAY_END, NEW_SENTENCE, NUMBERED

# What a word is to the rules, a bit each. A sentence may end between two words: bits 0 to 8 are
# about the word as the one before that place, bits 9 to 12 and 14 about it as the one after.
#
#   bit  name               the word ...
#    0   ENDS               ends with a mark that may end a sentence, closing marks left aside
#    1   ENDS_WITH_DOT      that mark is a single dot
#    2   ENDS_FREELY        ends with a mark that needs no blank after it
#    3   IS_ABBREVIATION    is an abbreviation and its dot
#    4   IS_MAY_END         is an abbreviation that may end a sentence
#    5   IS_NUMBERED        is an abbreviation that a number may follow
#    6   IS_INITIALS        is initials
#    7   HAS_DOTS           is several initials, with dots between them
#    8   IS_LIST_NUMBER     is a number and a dot, as at the start of an entry of a list
#    9   BEGINS_LOWER       begins with a small letter, opening marks left aside
#   10   ALL_OPENING        consists of opening marks
#   11   IS_NEW_SENTENCE    is one that begins sentences
#   12   BEGINS_WITH_DIGIT  begins with a digit, opening marks left aside
#   13   HAS_UNKNOWN        has a piece [UNK]; not for the rules
#   14   BEGINS_FREELY      begins with a mark that needs no blank after it
ENDS, ENDS_WITH_DOT, ENDS_FREELY = 1 << 0, 1 << 1, 1 << 2
IS_ABBREVIATION, IS_MAY_END, IS_NUMBERED = 1 << 3, 1 << 4, 1 << 5
IS_INITIALS, HAS_DOTS, IS_LIST_NUMBER = 1 << 6, 1 << 7, 1 << 8
BEGINS_LOWER, ALL_OPENING = 1 << 9, 1 << 10
IS_NEW_SENTENCE, BEGINS_WITH_DIGIT = 1 << 11, 1 << 12
HAS_UNKNOWN, BEGINS_FREELY = 1 << 13, 1 << 14
BITS_BEFORE = (1 << 9) - 1
"""The bits of a word as the one before."""

_DOT, _LETTER_I, _LETTER_A, _LETTER_Z = map(ord, ".IAZ")
_TO_LOWER = ord("a") - ord("A")
_FIRST_BEYOND_ASCII = 0x80

HASH_START, HASH_MULTIPLIER = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a
_LONGEST_RULE_WORD = max(map(len, ABBREVIATIONS | MAY_END | NUMBERED | NEW_SENTENCE))


class RuleWords(NamedTuple):
    """The words that the sentence rules know, by hash."""

    hashes: npt.NDArray[np.uint64]
    """uint64, sorted."""
    bits: IntArray
    """int64, what each word is."""


def make_rule_words() -> RuleWords:
    """Return the words of `data_prep.text.sentences`; numbered ones in small letters."""
    bits: dict[str, int] = {}
    for words, bit in (
        (ABBREVIATIONS, IS_ABBREVIATION),
        (MAY_END, IS_MAY_END),
        (NUMBERED, IS_NUMBERED),
        (NEW_SENTENCE, IS_NEW_SENTENCE),
    ):
        for word in words:
            bits[word] = bits.get(word, 0) | bit
    hashes = {word: int(hash_word(np.frombuffer(word.encode(), np.uint8))) for word in bits}
    ordered = sorted(bits, key=hashes.__getitem__)
    return RuleWords(
        np.array([hashes[word] for word in ordered], np.uint64),
        np.array([bits[word] for word in ordered], np.int64),
    )


@compiled
def is_end(before: int, after: int, words: int) -> bool:
    """Return whether a sentence ends between two words.

    Args:
        before: bits of the word before the blank, see `word_bits`.
        after: bits of the word after it.
        words: words of the sentence so far, the one before the blank included.
    """
    if before & ENDS_FREELY:
        return not after & BEGINS_FREELY
    if not before & ENDS or after & BEGINS_LOWER:
        return False
    if not before & ENDS_WITH_DOT:
        return True
    if before & IS_ABBREVIATION:
        return (before & IS_MAY_END) != 0 and (after & IS_NEW_SENTENCE) != 0
    if before & IS_NUMBERED and after & BEGINS_WITH_DIGIT:
        return False
    if before & IS_INITIALS:
        return (before & HAS_DOTS) != 0 and (after & IS_NEW_SENTENCE) != 0
    return not (words == 1 and before & IS_LIST_NUMBER)


@compiled
def word_bits(
    data: npt.NDArray[np.uint8],
    place: int,
    end: int,
    flags: npt.NDArray[np.uint16],
    rules: RuleWords,
    letters: npt.NDArray[np.int32],
) -> int:
    """Return the bits of a word: what it is to the rules of `data_prep.text.sentences`.

    Args:
        data: UTF-8 that holds the word.
        place: first byte of the word.
        end: the byte after it.
        flags: of every character.
        rules: the words that the rules know.
        letters: room for the characters of the word.
    """
    size = 0
    while place < end:
        code, place = decode(data, place)
        if not flags[code] & ch.REMOVED:
            letters[size] = code
            size += 1
    return _bits_before(letters, size, flags, rules) | _bits_after(letters, size, flags, rules)


@compiled
def _bits_before(
    letters: npt.NDArray[np.int32],
    size: int,
    flags: npt.NDArray[np.uint16],
    rules: RuleWords,
) -> int:
    """Return the bits of a word as the one before a blank."""
    # The word is read from its end: [closing marks] [marks] [what the rules look at]. An example:
    #     ( U . S . "        first = 1, mark = 4, mark_end = 5, size = 6
    mark_end = size
    while mark_end and flags[letters[mark_end - 1]] & ch.IS_CLOSING:
        mark_end -= 1
    if mark_end and flags[letters[mark_end - 1]] & ch.IS_FREE_MARK:
        return ENDS_FREELY
    mark = mark_end
    while mark and flags[letters[mark - 1]] & ch.IS_MARK:
        mark -= 1
    if mark == mark_end:
        return 0
    if mark_end - mark > 1 or letters[mark] != _DOT:
        return ENDS
    first = mark
    while first and mark - first < LOOK and not flags[letters[first - 1]] & ch.IS_BORDER:
        first -= 1
    bits = ENDS | ENDS_WITH_DOT
    bits |= _rule_bits(letters[first:mark], rules, False) & (IS_ABBREVIATION | IS_MAY_END)
    bits |= _rule_bits(letters[first:mark], rules, True) & IS_NUMBERED
    if _is_initials(letters[first:mark], flags):
        bits |= IS_INITIALS | (HAS_DOTS if mark - first > 1 else 0)
    if first == 0 and _is_number(letters[first:mark], flags):
        bits |= IS_LIST_NUMBER
    return bits


@compiled
def _is_initials(letters: npt.NDArray[np.int32], flags: npt.NDArray[np.uint16]) -> bool:
    """Return whether characters are initials with dots between them; "I" alone is a word."""
    if len(letters) % 2 == 0 or (len(letters) == 1 and letters[0] == _LETTER_I):
        return False
    for index in range(len(letters)):
        if index % 2 == 0 and not flags[letters[index]] & ch.IS_INITIAL:
            return False
        if index % 2 == 1 and letters[index] != _DOT:
            return False
    return True


@compiled
def _is_number(letters: npt.NDArray[np.int32], flags: npt.NDArray[np.uint16]) -> bool:
    """Return whether characters are digits, at least one."""
    for letter in letters:
        if not flags[letter] & ch.IS_DIGIT:
            return False
    return len(letters) > 0


@compiled
def _bits_after(
    letters: npt.NDArray[np.int32],
    size: int,
    flags: npt.NDArray[np.uint16],
    rules: RuleWords,
) -> int:
    """Return the bits of a word as the one after a blank."""
    first = 0
    while first < size and flags[letters[first]] & ch.IS_OPENING:
        first += 1
    if first == size:
        return ALL_OPENING
    if flags[letters[0]] & ch.IS_FREE_MARK:
        return BEGINS_FREELY
    bits = BEGINS_LOWER if flags[letters[first]] & ch.IS_LOWER else 0
    last = min(size, LOOK)
    while last > first and flags[letters[last - 1]] & ch.IS_OPENING:
        last -= 1
    if first < last:
        bits |= _rule_bits(letters[first:last], rules, False) & IS_NEW_SENTENCE
        bits |= BEGINS_WITH_DIGIT if flags[letters[first]] & ch.IS_DIGIT else 0
    return bits


@compiled
def _rule_bits(letters: npt.NDArray[np.int32], rules: RuleWords, is_lowered: bool) -> int:
    """Return what the rules know about a word of ASCII letters."""
    if len(letters) > _LONGEST_RULE_WORD:
        return 0
    hashed = HASH_START
    for letter in letters:
        if letter >= _FIRST_BEYOND_ASCII:
            return 0
        is_upper = _LETTER_A <= letter <= _LETTER_Z
        code = letter + _TO_LOWER if is_lowered and is_upper else letter
        hashed = (hashed ^ np.uint64(code)) * HASH_MULTIPLIER
    place = np.searchsorted(rules.hashes, hashed)
    if place < len(rules.hashes) and rules.hashes[place] == hashed:
        return integer(rules.bits[place])
    return 0


@compiled
def hash_word(data: npt.NDArray[np.uint8]) -> np.uint64:
    """Return the hash of a word's bytes."""
    hashed = HASH_START
    for byte in data:
        hashed = (hashed ^ np.uint64(byte)) * HASH_MULTIPLIER
    return hashed
