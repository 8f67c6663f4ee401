"""Which scripts a text is written in, counted by blocks of 128 characters.

Python knows no scripts, but the name of a letter begins with its script's, and a block of 128
characters hardly ever holds the letters of two.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from data_prep.contract.compiled import compiled
from data_prep.contract.format import IntArray
from data_prep.pieces.characters import decode

_BLOCK_BITS = 7
_NAMED_SCRIPTS = 5
_IS_LETTER = np.array([chr(code).isalpha() for code in range(0x80)], np.int64)


def new_block_counts() -> IntArray:
    """Return room for `count_letters`: int64, by block, all 0."""
    return np.zeros(0x110000 >> _BLOCK_BITS, np.int64)


@compiled
def count_letters(data: npt.NDArray[np.uint8], counts: IntArray) -> None:
    """Add the letters of ASCII and all further characters of `data` (UTF-8) to their blocks."""
    place = latin = 0
    while place < len(data):
        byte = data[place]
        if byte < 0x80:
            latin += _IS_LETTER[byte]
            place += 1
            continue
        code, place = decode(data, place)
        counts[code >> _BLOCK_BITS] += 1
    counts[0] += latin


def named_scripts(blocks: Mapping[int, int]) -> tuple[tuple[str, int], ...]:
    """Return the commonest scripts of some blocks, with their characters, the commonest first."""
    counts: Counter[str] = Counter()
    for block, count in blocks.items():
        counts[_script_of_block(block)] += count
    ordered = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    return tuple((name, count) for name, count in ordered if name)[:_NAMED_SCRIPTS]


def _script_of_block(block: int) -> str:
    """Return the script of most letters of a block; empty where it holds none."""
    first = block << _BLOCK_BITS
    names = Counter(map(script_of, map(chr, range(first, first + (1 << _BLOCK_BITS)))))
    del names[""]
    return max(names, key=lambda name: (names[name], name), default="")


def script_of(character: str) -> str:
    """Return the script of a letter, such as "Khmer" or "CJK"; empty for any other character."""
    if unicodedata.category(character) not in ("Lu", "Ll", "Lt", "Lo"):
        return ""
    name = unicodedata.name(character, "").split(" ")[0]
    return name if name == "CJK" else name.capitalize()
