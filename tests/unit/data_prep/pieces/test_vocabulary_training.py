"""Vocabulary training: hand-worked, ordered, and the same in every process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from data_prep.contract.errors import InputError, UsageError
from data_prep.contract.wordpiece import SPECIAL_PIECES
from data_prep.pieces.vocabulary_training import VocabularyOptions, count_words, train_vocabulary

SCRIPT = """
import sys
from data_prep.pieces.vocabulary_training import *
texts = [
    f"w{i % 97}x{i % 89} {chr(97 + i % 26) * (i % 7)}{chr(0x3b1 + i % 20)}" for i in range(3000)
]
pieces = train_vocabulary(count_words(texts), VocabularyOptions(400))
sys.stdout.buffer.write("\\n".join(pieces).encode())
"""


def test_a_tiny_text_gives_the_pieces_worked_out_by_hand() -> None:
    # Characters first (a, b, then ##b, ##c), then the commonest pair: "ab" three times.
    pieces = train_vocabulary(count_words(["ab ab abc b"]), VocabularyOptions(size=11))
    assert pieces == [*SPECIAL_PIECES, "a", "b", "c", "##b", "##c", "ab"]


def test_two_processes_give_equal_bytes_although_ties_abound() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT], check=True, capture_output=True, timeout=60
        ).stdout
        for _ in range(2)
    }
    assert len(outputs) == 1
    assert outputs.pop().count(b"\n") == 399


def test_the_order_of_the_words_does_not_matter() -> None:
    words = "the cat sat on the mat and the rat ran at the cat".split()
    options = VocabularyOptions(size=40)
    forward = train_vocabulary(count_words([" ".join(words)]), options)
    assert train_vocabulary(count_words([" ".join(reversed(words))]), options) == forward


def test_the_alphabet_keeps_the_commonest_characters_and_the_smaller_of_equals() -> None:
    pieces = train_vocabulary(
        count_words(["b b b c c a a z"]), VocabularyOptions(size=30, limit_alphabet=2)
    )
    assert pieces == [*SPECIAL_PIECES, "a", "b"]


def test_case_and_accents_follow_the_options() -> None:
    counts = count_words(["\u00c9t\u00e9 \u00c9t\u00e9"])
    assert "ete" in train_vocabulary(counts, VocabularyOptions(size=40))
    cased = VocabularyOptions(size=40, lowercase=False, strip_accents=False)
    assert "\u00c9t\u00e9" in train_vocabulary(counts, cased)


def test_a_size_that_does_not_hold_the_characters_says_how_many_it_needs() -> None:
    with pytest.raises(UsageError, match=r"--vocab-size 8 is too small.*at least 10"):
        train_vocabulary(count_words(["abc"]), VocabularyOptions(size=8))


def test_no_word_is_an_error() -> None:
    with pytest.raises(InputError, match="no word"):
        train_vocabulary(count_words([" \n", "\u200b"]), VocabularyOptions())


def test_an_empty_alphabet_is_an_error() -> None:
    with pytest.raises(UsageError, match="--limit-alphabet 0"):
        train_vocabulary(count_words(["a"]), VocabularyOptions(limit_alphabet=0))
