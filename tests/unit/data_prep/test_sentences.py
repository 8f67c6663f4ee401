"""Sentence splitting by rules and by lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.sentences import split_paragraph, split_sentences


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
