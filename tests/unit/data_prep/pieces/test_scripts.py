"""Which scripts a text is written in."""

from __future__ import annotations

import numpy as np

from data_prep.pieces.scripts import count_letters, named_scripts, new_block_counts


def scripts_of(*texts: str) -> tuple[tuple[str, int], ...]:
    counts = new_block_counts()
    for text in texts:
        count_letters(np.frombuffer(text.encode(), np.uint8), counts)
    return named_scripts({int(block): int(counts[block]) for block in np.flatnonzero(counts)})


def test_scripts_are_named_by_how_many_characters_they_have() -> None:
    khmer, thai = "\u1781\u17d2\u1789\u17bb\u17c6", "\u0e27\u0e31\u0e19"
    assert scripts_of(f"{khmer} 12.", f"{thai} ok!") == (("Khmer", 5), ("Thai", 3), ("Latin", 2))


def test_neighbours_and_accented_letters_keep_their_scripts() -> None:
    assert scripts_of("\u0e81\u0e81\u0e01") == (("Lao", 2), ("Thai", 1))
    assert scripts_of("\u00e9t\u00e9 \u4e2d\u6587\u3042") == (
        ("Latin", 3), ("CJK", 2), ("Hiragana", 1),
    )  # fmt: skip


def test_marks_and_digits_belong_to_none() -> None:
    assert scripts_of("123 -- \u2014 \u2019") == ()
