"""Tokenisation: the word cache and Hugging Face's tokeniser give the same ids for any text."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer

from data_prep import wordpiece
from data_prep.clean import clean_document
from data_prep.errors import DataError
from data_prep.vocabulary_training import VocabularyOptions, count_words, train_vocabulary
from data_prep.wordpiece import (
    SPECIAL_PIECES,
    Vocabulary,
    WordPieceTokenizer,
    join_pieces,
    load_vocabulary,
)

ODD_TEXTS = [
    "Unaffordable, re-entry (1,234.5%) -- isn't it?",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5\uc740 "
    "\uc790\ubaa8\ub85c \ub098\ub258\uc9c0 \uc54a\ub294\ub2e4.",
    "\u4e2d\u6587\u5b57\u7b26\u4e4b\u95f4\u6ca1\u6709\u7a7a\u683c \u65e5\u672c\u8a9e\u3082",
    "na\u00efve caf\u00e9 Stra\u00dfe \u0130stanbul I\u0307 \u03a3\u0391\u03a3 \ufb01ne",
    "e\u0301\u0327\u0301 \u0301leading mark \u200bzero\u200dwidth\u00ad \ufeff \ufffd",
    "[SEP] [MASK] text[CLS]text [pad] ##ing # ##",
    "\U0001f600\U0001f3fd \U0001d400\U0001d7d8 \u0e01\u0e33\u0e44 \u0915\u094d\u0937",
    "x" * 99 + " " + "y" * 101 + " " + "un" * 60,
    "a\u00a0b\u2003c\u3000d\u2028e\u0085f",
    "",
]


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    options = VocabularyOptions(size=900, lowercase=request.param, strip_accents=request.param)
    counts = count_words([*ODD_TEXTS, *ODD_TEXTS, "unaffordable re entry able afford un ##ing"])
    pieces = train_vocabulary(counts, options)
    return Vocabulary(tuple(pieces), "", request.param, request.param)


def hugging_face_ids(vocabulary: Vocabulary, text: str, specials_are_text: bool) -> list[int]:
    """A tokeniser made here from the library's documentation, not by the code under test."""
    tokenizer = BertWordPieceTokenizer(
        {piece: index for index, piece in enumerate(vocabulary.pieces)},
        lowercase=vocabulary.lowercase,
    )
    tokenizer._tokenizer.encode_special_tokens = specials_are_text
    for character in "\v\f\x85":  # white space to data_prep.clean, nothing to Hugging Face
        text = text.replace(character, " ")
    return tokenizer.encode(text, add_special_tokens=False).ids


def cleaned(text: str) -> str:
    return " ".join(clean_document(text))


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_ids_equal_those_of_hugging_face_for_odd_text(vocabulary: Vocabulary, text: str) -> None:
    tokenizer = WordPieceTokenizer(vocabulary)
    expected = hugging_face_ids(vocabulary, text, specials_are_text=True)
    assert tokenizer.encode([cleaned(text)]) == [expected]
    assert tokenizer.encode([cleaned(text)]) == [expected]  # now out of the cache
    if "[" not in text:
        assert expected == hugging_face_ids(vocabulary, text, specials_are_text=False)


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=60))
def test_ids_equal_those_of_hugging_face_for_any_text(vocabulary: Vocabulary, text: str) -> None:
    expected = hugging_face_ids(vocabulary, text, specials_are_text=True)
    assert WordPieceTokenizer(vocabulary).encode([cleaned(text)]) == [expected]


def test_text_that_spells_a_special_piece_never_becomes_one(vocabulary: Vocabulary) -> None:
    (ids,) = WordPieceTokenizer(vocabulary).encode(["[SEP] [CLS] [MASK] [PAD]"])
    specials = {vocabulary.id_of(piece) for piece in SPECIAL_PIECES if piece != "[UNK]"}
    assert specials.isdisjoint(ids)


def test_a_full_cache_is_emptied_and_the_ids_stay(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wordpiece, "_CACHE_WORDS", 2)
    tokenizer = WordPieceTokenizer(vocabulary)
    texts = ["un able", "afford re entry", "x" * 60 + " un", "un able"]
    assert [tokenizer.encode([text])[0] for text in texts] == tokenizer.encode_plain(texts)


def test_a_cache_that_gives_other_ids_is_left_out_loudly(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(WordPieceTokenizer, "_encode_fast", lambda self, texts: [[0]])
    with caplog.at_level(logging.WARNING):
        tokenizer = WordPieceTokenizer(vocabulary)
    assert "left out" in caplog.text
    assert tokenizer.encode(["able"]) == tokenizer.encode_plain(["able"])


def test_specials_may_stand_at_any_line_as_in_published_vocabularies(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    pieces = ["[PAD]", "[unused0]", "[UNK]", "a", "[CLS]", "[SEP]", "##b", "[MASK]"]
    path.write_text("\r\n".join(pieces) + "\r\n", encoding="utf-8", newline="")
    vocabulary = load_vocabulary(path)
    assert vocabulary.pieces == tuple(pieces)
    assert vocabulary.special_ids["[MASK]"] == 7
    assert WordPieceTokenizer(vocabulary).encode(["ab abb zz"]) == [[3, 6, 3, 6, 6, 2]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", r"5 pieces without \[MASK\]"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\na\n", "'a' stands on line 6 and on line 8"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n\n\nb\n", "'' stands on line 6 and on line 7"),
        (b"", r"without \[PAD\]"),
        (b"\xff\xfe", "not UTF-8 at byte 0"),
    ],
)
def test_a_file_that_is_no_vocabulary_says_why(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_vocabulary(path)


def test_a_missing_vocabulary_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        load_vocabulary(tmp_path / "vocab.txt")


def test_pieces_are_joined_into_words() -> None:
    assert join_pieces(["[CLS]", "un", "##able", "to"]) == "[CLS] unable to"
