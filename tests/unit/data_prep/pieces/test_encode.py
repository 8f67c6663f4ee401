"""Piece ids and sentences: the fast way, the plain way and Hugging Face's tokeniser agree."""

from __future__ import annotations

import logging
import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer

from data_prep.contract.wordpiece import SPECIAL_PIECES, Vocabulary
from data_prep.pieces import characters
from data_prep.pieces import encode as encode_module
from data_prep.pieces import words as word_module
from data_prep.pieces.encode import Encoded, TextEncoder, encode_texts
from data_prep.pieces.vocabulary_training import VocabularyOptions, count_words, train_vocabulary
from data_prep.text.clean import clean_document
from data_prep.text.readers import TextChunk
from data_prep.text.sentences import split_sentences

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
    for character in "\v\f\x85":  # white space to data_prep.text.clean, nothing to Hugging Face
        text = text.replace(character, " ")
    return tokenizer.encode(text, add_special_tokens=False).ids


def chunk_of(texts: list[str]) -> TextChunk:
    """Documents end to end."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([len(text) for text in encoded])
    starts = ends - [len(text) for text in encoded]
    return TextChunk(b"".join(encoded), starts, ends, starts.astype(np.uint64))


def assert_equal(fast: Encoded, plain: Encoded) -> None:
    for name, one, other in zip(fast._fields, fast, plain, strict=True):
        assert one.tolist() == other.tolist(), name
        assert one.dtype == other.dtype, name


@pytest.fixture(scope="module")
def encoder(vocabulary: Vocabulary) -> TextEncoder:
    encoder = TextEncoder(vocabulary, content_key=2**64 - 59)
    assert encoder.is_fast
    return encoder


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_ids_equal_those_of_hugging_face_for_odd_text(
    vocabulary: Vocabulary, encoder: TextEncoder, text: str
) -> None:
    # Sentences are given to the tokeniser one by one; their ids joined are those of the text.
    expected = hugging_face_ids(vocabulary, " ".join(split_sentences(text)), True)
    assert encode_texts(encoder, [text, text]) == [expected, expected]  # again out of the table
    if "[" not in text:
        assert expected == hugging_face_ids(vocabulary, text, specials_are_text=False)


# Text as it comes: words and marks that the sentence rules look at, and any character at all.
words = st.sampled_from(
    [
        "Mr.", "No.", "p.", "5", "12.", "I.", "U.S.", "J.", "a.b.", "Inc.", "The", "the", "He", "(",
        ")", "\"", "'", "...", "?!", ".", "\u201c", "\u3002", "\uff01\u300d", "x\u3002y\u3002",
        "etc.", "[", "\u00a1", "\u00e9.", "\u0130", "e\u0301.", "\x00", "\x00a\x01.", "\x1c",
        "\u200b", "ok.)", "\ufffd", "\u0964", "\u061f", "x" * 45 + ".", "1" * 41 + ".", "Fig.",
        "7", "\"\"", "\u00ab", "\uff0e", "\uff0e5", "\uff13\uff0e\uff15", "\u0f0d", "x\u17d4",
        "\uff61\uff63", "\u0589", "\u104b", "\u1362", "\u0965", "\ufe52",
    ]
)  # fmt: skip
blanks = st.sampled_from(
    [
        " ", "  ", "\n", "\n\n", "\r\n", "\r", "\n \n", "\n\x1c\n", "\n\x00\n", "\t", "\f", "\x85",
        "\u3000", "\u2028", "",
    ]
)  # fmt: skip
mixed = st.lists(st.one_of(words, blanks, st.text(max_size=4)), max_size=30).map("".join)


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(mixed, min_size=1, max_size=3), by_lines=st.booleans())
def test_the_fast_way_equals_the_plain_way_for_any_text(
    vocabulary: Vocabulary, texts: list[str], by_lines: bool
) -> None:
    encoder = encoders(vocabulary, by_lines)
    chunk = chunk_of(texts)
    for _ in range(2):  # the second time out of the table
        encoder.take_unknown()
        fast = encoder.encode(chunk)
        unknown_fast = encoder.take_unknown()
        assert_equal(fast, encoder.encode_plain(chunk))
        assert unknown_fast == encoder.take_unknown()


_ENCODERS: dict[tuple[Vocabulary, bool], TextEncoder] = {}


def encoders(vocabulary: Vocabulary, by_lines: bool) -> TextEncoder:
    """An encoder that is made once and kept over examples."""
    if (vocabulary, by_lines) not in _ENCODERS:
        rule = "lines" if by_lines else "rules"
        _ENCODERS[vocabulary, by_lines] = TextEncoder(vocabulary, rule, 77)
    return _ENCODERS[vocabulary, by_lines]


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=60))
def test_ids_equal_those_of_hugging_face_for_any_text(vocabulary: Vocabulary, text: str) -> None:
    cleaned = "\n".join(clean_document(text))
    expected = [
        piece
        for sentence in split_sentences(text)
        for piece in hugging_face_ids(vocabulary, sentence, specials_are_text=True)
    ]
    assert encode_texts(encoders(vocabulary, False), [cleaned.replace("\n", "\n\n")]) == [expected]


def test_every_character_there_is_gives_the_ids_of_hugging_face(
    vocabulary: Vocabulary, encoder: TextEncoder
) -> None:
    # Each character alone, and between letters, where it may join or part them.
    # Of those without a meaning some stand for all, as do some of the CJK characters and Hangul
    # syllables, which are made by rule.
    unassigned = {"Cn", "Co"}
    by_rule = range(0x3400, 0xD7A4)
    all_codes = [
        code
        for code in range(sys.maxunicode + 1)
        if not 0xD800 <= code < 0xE000
        and (
            (unicodedata.category(chr(code)) not in unassigned and code not in by_rule)
            or code % 61 == 0
        )
        and (code < 0x20000 or code % 61 == 0)
    ]
    assert len(all_codes) > 40_000
    for start in range(0, len(all_codes), 1 << 14):
        codes = all_codes[start : start + (1 << 14)]
        text = " ".join(f"{chr(code)} a{chr(code)}b" for code in codes)
        chunk = chunk_of([text])
        assert_equal(encoder.encode(chunk), encoder.encode_plain(chunk))
    encoder.take_unknown()


def test_marks_that_decomposition_reorders_take_the_plain_way(
    vocabulary: Vocabulary, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = TextEncoder(vocabulary)
    moved = "a\u302e\U0001d165\u0301"
    assert {unicodedata.combining(character) for character in moved[1:3]} == {224, 216}
    chunk = chunk_of([f"able {moved} un.", "an able text", f"{moved}"])
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert_equal(encoder.encode(chunk), encoder.encode_plain(chunk))
    assert caplog.text.count("take the plain way") == int(vocabulary.strip_accents)


def test_the_documents_between_irregular_ones_are_scanned_together(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = TextEncoder(vocabulary)
    moved = "a\u302e\U0001d165\u0301"
    texts = [f"an able text \u00e9 {number}" for number in range(50)]
    for place in (0, 20, 21, 49):
        texts[place] = f"able {moved} un."
    chunk = chunk_of(texts)
    expected = encoder.encode_plain(chunk)
    scanned: list[int] = []
    real = encoder._scan
    monkeypatch.setattr(
        encoder, "_scan", lambda part, data: scanned.append(len(part.starts)) or real(part, data)
    )
    assert_equal(encoder.encode(chunk), expected)
    assert scanned == ([19, 27] if vocabulary.strip_accents else [50])


def test_text_that_spells_a_special_piece_never_becomes_one(
    vocabulary: Vocabulary, encoder: TextEncoder
) -> None:
    (ids,) = encode_texts(encoder, ["[SEP] [CLS] [MASK] [PAD]"])
    specials = {vocabulary.id_of(piece) for piece in SPECIAL_PIECES if piece != "[UNK]"}
    assert specials.isdisjoint(ids)


def test_a_full_table_is_emptied_and_the_ids_stay(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_module, "_MOST_WORDS", 3)
    encoder = TextEncoder(vocabulary)
    chunk = chunk_of(["un able \u2603 afford", "afford re entry re \u2603 un able", "un " * 9])
    encoder.take_unknown()
    assert_equal(encoder.encode(chunk), encoder.encode_plain(chunk))
    assert encoder.take_unknown() == {"\u2603": 4}  # two in each way


def test_unknown_characters_are_counted_as_often_as_they_stand(encoder: TextEncoder) -> None:
    encoder.take_unknown()
    encoder.encode(chunk_of(["a \u2603b \u2603b \u2604", "\u2603\u2603 " + "\u2604" * 70]))
    assert encoder.take_unknown() == {"\u2603": 4, "\u2604": 71}
    assert encoder.take_unknown() == {}


def test_a_long_word_counts_nothing_twice(encoder: TextEncoder) -> None:
    encoder.take_unknown()
    chunk = chunk_of(["\u2603 " * 10 + "a" * 3_000 + " \u2603 " + "." * 2_000])
    fast = encoder.encode(chunk)
    assert encoder.take_unknown() == {"\u2603": 11}
    assert_equal(fast, encoder.encode_plain(chunk))
    encoder.take_unknown()


def test_a_fast_way_that_gives_other_ids_is_left_out_loudly(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    true_trie = encode_module.make_trie
    monkeypatch.setattr(encode_module, "make_trie", lambda pieces: true_trie([*pieces[1:], "x"]))
    with caplog.at_level(logging.WARNING):
        encoder = TextEncoder(vocabulary)
    assert "plain way is taken" in caplog.text
    assert not encoder.is_fast
    chunk = chunk_of(["able"])
    assert_equal(encoder.encode(chunk), TextEncoder(vocabulary, is_fast=False).encode(chunk))


def test_a_sample_of_the_text_is_held_against_the_plain_way(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = TextEncoder(vocabulary)
    encoder.check(chunk_of(["un able\n\n", "afford \u00e9" * 9000]))
    assert encoder.is_fast
    encoder.arrays.flags[ord("b")] = characters.SPACE | characters.BLANK
    encoder.check(chunk_of(["un able\n\n", "afford"]))
    assert encoder.is_fast  # it was tried just now
    monkeypatch.setattr(encode_module, "_CHECK_EVERY_BYTES", 10)
    encoder.encode(chunk_of(["un un un un"]))
    encoder.check(chunk_of(["un able\n\n", "afford"]))
    assert not encoder.is_fast
    assert "plain way is taken" in caplog.text


def test_documents_without_a_piece_have_no_sentence(encoder: TextEncoder) -> None:
    encoded = encoder.encode(chunk_of(["\u200b\n", "able. Un", " "]))
    assert encoded.num_sentences.tolist() == [0, 2, 0]


def test_equal_texts_have_equal_hashes_and_the_key_counts(vocabulary: Vocabulary) -> None:
    texts = ["un able", "un  able\n", "unable", "able un"]
    one = TextEncoder(vocabulary, content_key=1).encode(chunk_of(texts)).content.tolist()
    other = TextEncoder(vocabulary, content_key=2).encode(chunk_of(texts)).content.tolist()
    assert one[0] == one[1]
    assert len(set(one)) == 3
    assert not set(one) & set(other)


@pytest.mark.parametrize(
    "package",
    [
        "blingfire",
        pytest.param(
            "nupunkt",
            marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="nupunkt needs 3.11"),
        ),
        "sentencex:en",
    ],
)
def test_packages_cut_sentences_in_both_ways(vocabulary: Vocabulary, package: str) -> None:
    encoder = TextEncoder(vocabulary, package)
    text = "Able men afford it. An entry is re-opened! (Is it?)\nYes.\n\nUn able un."
    chunk = chunk_of([text, "", "un"])
    fast = encoder.encode(chunk)
    assert_equal(fast, encoder.encode_plain(chunk))
    assert fast.num_sentences.tolist()[0] >= 4
