"""Vocabulary files: read as they are published, refused where they are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_prep.contract.errors import DataError
from data_prep.contract.wordpiece import join_pieces, load_vocabulary
from data_prep.pieces.encode import TextEncoder, encode_texts


def test_specials_may_stand_at_any_line_as_in_published_vocabularies(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    pieces = ["[PAD]", "[unused0]", "[UNK]", "a", "[CLS]", "[SEP]", "##b", "[MASK]"]
    path.write_text("\r\n".join(pieces) + "\r\n", encoding="utf-8", newline="")
    vocabulary = load_vocabulary(path)
    assert vocabulary.pieces == tuple(pieces)
    assert vocabulary.special_ids["[MASK]"] == 7
    assert encode_texts(TextEncoder(vocabulary), ["ab abb zz"]) == [[3, 6, 3, 6, 6, 2]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", r"5 pieces without \[MASK\]"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\na\n", "'a' stands on line 6 and on line 8"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n\n\nb\n", "'' stands on line 6 and on line 7"),
        (b"", r"without \[PAD\]"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n", "no piece of text besides"),
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
