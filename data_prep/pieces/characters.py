"""What each character is to the tokeniser and to the sentence rules, as arrays for compiled code.

The tokeniser's side is asked of Hugging Face's own normaliser and pre-tokeniser, one character at a
time and once for each, so that it follows their version of Unicode; the side of cleaning and
sentences is asked of the regular expressions of `data_prep.text.clean` and of
`data_prep.text.sentences`. Pages of 256 characters are asked for when text holds one of them.
"""

from __future__ import annotations

import unicodedata
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import BertWordPieceTokenizer

from data_prep.contract.compiled import compiled, integer
from data_prep.contract.format import IntArray
from data_prep.text.clean import is_removed
from data_prep.text.sentences import (
    CLOSING,
    FREE_MARKS,
    FULL_WIDTH_STOPS,
    MARKS,
    OPENING,
    is_initial,
    is_word_border,
)

SPACE = 1
"""White space: separates words."""
REMOVED = 2
"""A control character, which cleaning takes out."""
BLANK = 4
"""White space or a control that Python takes for it: a line of these alone is blank."""
NEWLINE = 8
IS_OPENING, IS_CLOSING, IS_MARK, IS_FREE_MARK = 16, 32, 64, 128
IS_LOWER, IS_DIGIT, IS_INITIAL, IS_BORDER = 256, 512, 1024, 2048
IRREGULAR = 4096
"""Its normal form depends on its neighbours: text with it goes the plain way."""

PUNCTUATION = 1 << 24
"""Added to a normalised character that is a word of its own."""
BREAK = 1 << 25
"""A normalised character that ends a word and is dropped."""

_STOP, _SMALL_STOP = map(ord, FULL_WIDTH_STOPS)
_CHARACTERS = 0x110000
_PAGE = 256
_SURROGATES = range(0xD800, 0xE000)
_POOL = 1 << 12


class Characters(NamedTuple):
    """The arrays."""

    flags: npt.NDArray[np.uint16]
    """uint16 [0x110000], the bits above."""
    start: npt.NDArray[np.int32]
    """Int32 [0x110000], where the normalised characters lie in `pool`."""
    size: npt.NDArray[np.uint8]
    """uint8 [0x110000], how many there are; most have one."""
    pool: npt.NDArray[np.int32]
    """Int32, normalised characters with `PUNCTUATION` or `BREAK`."""
    is_loaded: npt.NDArray[np.bool_]
    """bool [0x1100], by page."""


class CharacterTable:
    """Fills the arrays page by page.

    Args:
        reference: the tokeniser whose normaliser and pre-tokeniser are asked.
        strips_accents: whether that tokeniser decomposes characters.
    """

    def __init__(self, reference: BertWordPieceTokenizer, strips_accents: bool) -> None:
        self._normalizer, self._pre_tokenizer = reference.normalizer, reference.pre_tokenizer
        self._strips_accents = strips_accents
        self._used = 0
        self._kinds: dict[str, int] = {}
        self.arrays = Characters(
            np.zeros(_CHARACTERS, np.uint16),
            np.zeros(_CHARACTERS, np.int32),
            np.zeros(_CHARACTERS, np.uint8),
            np.zeros(_POOL, np.int32),
            np.zeros(_CHARACTERS // _PAGE, np.bool_),
        )
        self.load(0)

    def load(self, page: int) -> None:
        """Ask for the characters of a page."""
        for code in range(page * _PAGE, (page + 1) * _PAGE):
            if code not in _SURROGATES:
                self._load_character(code)
        self.arrays.is_loaded[page] = True

    def _load_character(self, code: int) -> None:
        """Ask for one character."""
        character = chr(code)
        normalised = self._normalizer.normalize_str(character)
        self._reserve(len(normalised))
        self.arrays.start[code], self.arrays.size[code] = self._used, len(normalised)
        for part in normalised:
            self.arrays.pool[self._used] = self._kind(part)
            self._used += 1
        self.arrays.flags[code] = _flags(character) | self._irregular(normalised)

    def _reserve(self, count: int) -> None:
        """Make room for `count` more normalised characters."""
        pool = self.arrays.pool
        if self._used + count > len(pool):
            self.arrays = self.arrays._replace(pool=np.concatenate([pool, np.zeros_like(pool)]))

    def _kind(self, character: str) -> int:
        """Return a normalised character with its kind to the pre-tokeniser, between two letters."""
        if character not in self._kinds:
            parts = self._pre_tokenizer.pre_tokenize_str(f"a{character}a")
            kind = {1: 0, 2: BREAK, 3: PUNCTUATION}[len(parts)]
            self._kinds[character] = ord(character) | kind
        return self._kinds[character]

    def _irregular(self, normalised: str) -> int:
        """Return `IRREGULAR` for marks that decomposition may put into another order."""
        is_moved = self._strips_accents and any(map(unicodedata.combining, normalised))
        return IRREGULAR if is_moved else 0


def _flags(character: str) -> int:
    """Return the bits of a character, but for `IRREGULAR`."""
    removed = is_removed(character)
    tests = {
        SPACE: character.isspace() and not removed,
        REMOVED: removed,
        BLANK: character.isspace(),
        NEWLINE: character in "\r\n",
        IS_OPENING: character in OPENING,
        IS_CLOSING: character in CLOSING,
        IS_MARK: character in MARKS,
        IS_FREE_MARK: character in FREE_MARKS,
        IS_LOWER: character.islower(),
        IS_DIGIT: character.isdigit(),
        IS_INITIAL: is_initial(character),
        IS_BORDER: is_word_border(character),
    }
    return sum(bit for bit, is_set in tests.items() if is_set)


@compiled
def decode(data: npt.NDArray[np.uint8], place: int) -> tuple[int, int]:
    """Return the character at `place` of valid UTF-8, and the place after it."""
    byte = integer(data[place])
    if byte < 0x80:
        return byte, place + 1
    second = integer(data[place + 1]) & 0x3F
    if byte < 0xE0:
        return ((byte & 0x1F) << 6) | second, place + 2
    third = integer(data[place + 2]) & 0x3F
    if byte < 0xF0:
        return ((byte & 0x0F) << 12) | (second << 6) | third, place + 3
    fourth = integer(data[place + 3]) & 0x3F
    return ((byte & 0x07) << 18) | (second << 12) | (third << 6) | fourth, place + 4


@compiled
def is_stop_of_digits(code: int) -> bool:
    """Return whether the mark is a decimal point, too, between digits."""
    return code == _STOP or code == _SMALL_STOP


@compiled
def is_western_digit(code: int) -> bool:
    """Return whether the character is one of 0 to 9, also full-width."""
    return 0x30 <= code <= 0x39 or 0xFF10 <= code <= 0xFF19


@compiled
def missing_page(data: npt.NDArray[np.uint8], is_loaded: npt.NDArray[np.bool_]) -> int:
    """Return the first page of characters in `data` (UTF-8) that is not loaded, or -1."""
    place = 0
    while place < len(data):
        if data[place] < 0x80:
            place += 1
            continue
        code, place = decode(data, place)
        if not is_loaded[code >> 8]:
            return code >> 8
    return -1


@compiled
def has_flag(data: npt.NDArray[np.uint8], flags: npt.NDArray[np.uint16], flag: int) -> bool:
    """Return whether a character beyond ASCII has `flag`.

    Args:
        data: valid UTF-8.
        flags: of every character.
        flag: a single bit.
    """
    place = 0
    while place < len(data):
        if data[place] < 0x80:
            place += 1
            continue
        code, place = decode(data, place)
        if flags[code] & flag:
            return True
    return False


@compiled
def documents_with_flag(
    data: npt.NDArray[np.uint8],
    starts: IntArray,
    ends: IntArray,
    flags: npt.NDArray[np.uint16],
    flag: int,
) -> npt.NDArray[np.bool_]:
    """Return which documents hold a character beyond ASCII that has `flag`.

    Args:
        data: UTF-8.
        starts: int64 [n], first byte of each document.
        ends: int64 [n], the byte after each.
        flags: of every character.
        flag: a single bit.
    """
    found = np.zeros(len(starts), np.bool_)
    for document in range(len(starts)):
        found[document] = has_flag(data[starts[document] : ends[document]], flags, flag)
    return found
