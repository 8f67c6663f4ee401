"""Cleaning of text."""

from __future__ import annotations

from data_prep.text.clean import clean_document, clean_lines


def test_controls_go_and_white_space_becomes_one_blank() -> None:
    assert clean_document(" a\x00b\x1c \t c\u00a0d\ne\x85f\x0cg ") == ["ab c d e f g"]


def test_blank_lines_separate_paragraphs_whatever_the_line_ends() -> None:
    assert clean_document("a\nb\r\n \r\nc\r\rd\n\n\n") == ["a b", "c", "d"]


def test_every_line_is_a_part_of_its_own() -> None:
    assert clean_lines("One. Two.\r\n\n three ") == ["One. Two.", "three"]
