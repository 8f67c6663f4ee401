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

# As the one before a blank.
ENDS, ENDS_WITH_DOT, ENDS_FREELY = 1, 2, 4
IS_ABBREVIATION, IS_MAY_END, IS_NUMBERED = 8, 16, 32
IS_INITIALS, HAS_DOTS, IS_LIST_NUMBER = 64, 128, 256
BITS_BEFORE = 511
"""All of these."""
# As the one after it.
BEGINS_LOWER, ALL_OPENING, IS_NEW_SENTENCE, BEGINS_WITH_DIGIT = 512, 1024, 2048, 4096
HAS_UNKNOWN = 8192
"""Not for the rules: a piece of the word is [UNK]."""
BEGINS_FREELY = 16384
"""As the one after a blank: it begins with a mark that needs no blank."""

HASH_START, HASH_MULTIPLIER = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a
_LONGEST_RULE_WORD = max(map(len, ABBREVIATIONS | MAY_END | NUMBERED | NEW_SENTENCE))


class RuleWords(NamedTuple):
    """The words that the sentence rules know, by hash.

    Attributes:
        hashes: uint64, sorted.
        bits: int64, what each is.
    """

    hashes: npt.NDArray[np.uint64]
    bits: IntArray


def make_rule_words() -> RuleWords:
    """The words of `data_prep.text.sentences`; numbered ones in small letters."""
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
    """Whether a sentence of `words` words ends between two words, by their bits."""
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
    """What a word is to the sentence rules; see `data_prep.text.sentences`."""
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
    """Bits of a word as the one before a blank."""
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
    if mark_end - mark > 1 or letters[mark] != 46:
        return ENDS
    first = mark
    while first and mark - first < LOOK and not flags[letters[first - 1]] & ch.IS_BORDER:
        first -= 1
    bits = ENDS | ENDS_WITH_DOT
    bits |= _rule_bits(letters[first:mark], rules, False) & (IS_ABBREVIATION | IS_MAY_END)
    bits |= _rule_bits(letters[first:mark], rules, True) & IS_NUMBERED
    is_initials = (mark - first) % 2 == 1 and not (mark - first == 1 and letters[first] == 73)
    is_number = mark > first
    for index in range(first, mark):
        flag = flags[letters[index]]
        is_initials &= (
            flag & ch.IS_INITIAL != 0 if (index - first) % 2 == 0 else letters[index] == 46
        )
        is_number &= flag & ch.IS_DIGIT != 0
    if is_initials:
        bits |= IS_INITIALS | (HAS_DOTS if mark - first > 1 else 0)
    if is_number and first == 0:
        bits |= IS_LIST_NUMBER
    return bits


@compiled
def _bits_after(
    letters: npt.NDArray[np.int32],
    size: int,
    flags: npt.NDArray[np.uint16],
    rules: RuleWords,
) -> int:
    """Bits of a word as the one after a blank."""
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
    """What the rules know about a word of ASCII letters."""
    if len(letters) > _LONGEST_RULE_WORD:
        return 0
    hashed = HASH_START
    for letter in letters:
        if letter >= 0x80:
            return 0
        code = letter + 32 if is_lowered and 65 <= letter <= 90 else letter
        hashed = (hashed ^ np.uint64(code)) * HASH_MULTIPLIER
    place = np.searchsorted(rules.hashes, hashed)
    if place < len(rules.hashes) and rules.hashes[place] == hashed:
        return integer(rules.bits[place])
    return 0


@compiled
def hash_word(data: npt.NDArray[np.uint8]) -> np.uint64:
    """The hash of a word's bytes."""
    hashed = HASH_START
    for byte in data:
        hashed = (hashed ^ np.uint64(byte)) * HASH_MULTIPLIER
    return hashed
