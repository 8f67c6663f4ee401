"""Sentence splitting by rules and by lines."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.contract.wordpiece import SPECIAL_PIECES, Vocabulary
from data_prep.pieces.encode import TextEncoder
from data_prep.text.readers import TextChunk
from data_prep.text.sentences import FREE_MARKS, MARKS, split_paragraph, split_sentences


def test_every_line_can_be_a_sentence() -> None:
    assert split_sentences("One. Two.\n\n three ", "lines") == ["One. Two.", "three"]


@pytest.mark.parametrize(
    "sentences",
    [
        ["Mr. Smith went to Washington D.C.", "He met J. F. Kennedy."],
        ['"Is it so?" she asked.', '"Yes!"', "The U.S. Navy won."],
        ["He said no.", "The cat sat.", "It is No. 5 of the list."],
        ["It cost $3.5 million...", "Then what?", "Acme Inc.", "The end."],
        ["1. First item.", "2. Second item."],
        ["Hello (he said.)", "So am I.", "But so what?!"],
        ["E.g. this, i.e. that, vs. those, etc. and more.", "Next."],
        ["\u00c9t\u00e9.", "\u00c0 la carte.", "\u00bfQu\u00e9?", "\u00a1Nada!"],
        ["\uadf8\ub294 \uac14\ub2e4.", "\ub098\ub294 \uc654\ub2e4."],
        ["no mark at all"],
    ],
)
def test_sentences_of_a_paragraph(sentences: list[str]) -> None:
    assert split_sentences(" ".join(sentences)) == sentences


def test_full_width_marks_need_no_blank() -> None:
    first, second = "\u4eca\u5929\u5f88\u597d\u3002", "\u771f\u7684\uff1f"
    assert split_sentences(first + second) == [first, second]


# Two sentences a script, with the blank between them that its texts have, or none.
SCRIPTS = {
    "Arabic": ("\u0643\u064a\u0641 \u062d\u0627\u0644\u0643\u061f ", "\u0628\u062e\u064a\u0631."),
    "Armenian": (
        "\u0535\u057d \u0563\u0576\u0578\u0582\u0574 \u0565\u0574\u0589 ",
        "\u0534\u0578\u0582 \u0563\u0561\u056c\u056b\u057d \u0565\u057d\u0589",
    ),
    "Burmese": ("\u1019\u103c\u1014\u103a\u1019\u102c\u104b", "\u1005\u102c\u104b"),
    "Burmese clause": ("\u1019\u103c\u1014\u103a\u1019\u102c\u104a", "\u1005\u102c\u104b"),
    "Ethiopic": ("\u1230\u120b\u121d \u1290\u12cd\u1362", "\u12f0\u1205\u1293 \u1290\u12cd\u1367"),
    "Hindi": ("\u092f\u0939 \u0939\u0948\u0964 ", "\u0935\u0939 \u0939\u0948\u0965"),
    "Javanese": ("\ua984\ua9a4\ua9c9", "\ua984\ua9a4\ua9c8"),
    "Khmer": ("\u1781\u17d2\u1789\u17bb\u17c6\u1791\u17c5\u17d4", "\u1782\u17b6\u178f\u17cb\u17d5"),
    "Khmer with a blank": ("\u1791\u17c5\u17d4 ", "\u1782\u17b6\u178f\u17cb\u17d4"),
    "Mongolian": ("\u182a\u1822\u1803 ", "\u1832\u1820\u1809"),
    "Tibetan": ("\u0f56\u0f7c\u0f51\u0f0d \u0f0d ", "\u0f61\u0f72\u0f42\u0f0d"),
    "Tibetan, double": ("\u0f56\u0f7c\u0f51\u0f0e ", "\u0f61\u0f72\u0f42\u0f0d \u0f0d"),
    "Urdu": ("\u06cc\u06c1 \u06c1\u06d2\u06d4 ", "\u0648\u06c1 \u06c1\u06d2\u06d4"),
    "Vai": ("\ua500\ua501\ua60e ", "\ua502\ua60f"),
    "full-width": ("\uff21\uff22\uff0e", "\uff13\uff0e\uff11\uff14\uff01"),
    "half-width": ("\uff71\uff72\uff61\uff63", "\uff73\uff74\uff61"),
}  # fmt: skip


@pytest.mark.parametrize("sentences", SCRIPTS.values(), ids=SCRIPTS)
def test_marks_of_other_scripts_end_sentences_in_both_ways(sentences: tuple[str, str]) -> None:
    text = "".join(sentences)
    assert split_sentences(text) == [sentence.strip() for sentence in sentences]
    pieces = (*SPECIAL_PIECES, *dict.fromkeys(text.replace(" ", "")))
    pieces += tuple(f"##{piece}" for piece in pieces[len(SPECIAL_PIECES) :])
    encoder = TextEncoder(Vocabulary(pieces, "", lowercase=False, strip_accents=False))
    data = text.encode()
    chunk = TextChunk(data, np.zeros(1, np.int64), np.full(1, len(data)), np.zeros(1, np.uint64))
    fast = encoder.encode(chunk)
    assert encoder.is_fast
    assert fast.num_sentences.tolist() == [2]
    for one, other in zip(fast, encoder.encode_plain(chunk), strict=True):
        np.testing.assert_array_equal(one, other)


def test_every_mark_that_unicode_calls_a_sentence_terminal_is_known() -> None:
    regex = pytest.importorskip("regex")  # it comes with transformers
    terminal = regex.compile(r"[\p{Sentence_Terminal}\p{Sentence_Break=STerm}]")
    marks = {chr(code) for code in range(0x110000) if terminal.fullmatch(chr(code))}
    leaders = {"\u2024"}  # the dots of a table of contents
    assert len(marks) > 150
    assert marks - leaders <= set(MARKS + FREE_MARKS)
    tibetan = {unicodedata.name(mark) for mark in {*MARKS, *FREE_MARKS} - marks}
    assert all(name.startswith(("TIBETAN MARK", "HORIZONTAL ELLIPSIS")) for name in tibetan)


def test_a_list_number_after_a_mark_that_needs_no_blank_begins_its_item() -> None:
    assert split_sentences("\u597d\u3002 5. B") == ["\u597d\u3002", "5. B"]


def test_thai_has_no_mark_and_stays_one_sentence() -> None:
    thai = "\u0e27\u0e31\u0e19\u0e19\u0e35\u0e49 \u0e09\u0e31\u0e19\u0e44\u0e1b"
    assert split_sentences(thai) == [thai]


def test_paragraphs_end_sentences() -> None:
    assert split_sentences("A title\n\nand text") == ["A title", "and text"]


@given(text=st.text(alphabet=st.sampled_from("aB.!?\"') \n1\u3002\u2019-"), max_size=60))
def test_no_character_but_white_space_is_lost(text: str) -> None:
    joined = "".join(split_sentences(text))
    assert "".join(joined.split()) == "".join(text.split())


@given(text=st.text(max_size=80))
def test_any_text_gives_sentences_without_outer_white_space(text: str) -> None:
    for sentence in split_sentences(text):
        assert sentence
        assert sentence == " ".join(sentence.split())


def test_a_long_paragraph_of_abbreviations_takes_linear_time() -> None:
    assert len(split_paragraph("Dr. X " * 50_000)) == 1
