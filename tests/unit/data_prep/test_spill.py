"""Spills: sections come back as they were, and documents can be left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from data_prep.spill import SpillWriter, TokenisedDocument, joined, read_section

DTYPE = np.dtype(np.uint16)


def test_sections_come_back_in_order_with_their_documents(tmp_path: Path) -> None:
    writer = SpillWriter(DTYPE)
    writer.add(TokenisedDocument(0, 0, 2**64 - 1, [2, 1], [10, 11, 12]), "train", 1)
    writer.add(TokenisedDocument(1, 2**40, 6, [3], [13, 14, 15]), "train", 1)
    writer.add(TokenisedDocument(0, 50, 7, [1], [16]), "train", 0)
    sections = writer.write(tmp_path / "a")
    assert [(s.split, s.bucket, s.documents, s.tokens) for s in sections] == [
        ("train", 0, 1, 1),
        ("train", 1, 2, 6),
    ]
    columns = joined(read_section(tmp_path / "a", section, DTYPE) for section in sections)
    assert columns.documents.tolist() == [
        (0, 50, 7, 1),
        (0, 0, 2**64 - 1, 2),
        (1, 2**40, 6, 1),
    ]
    assert columns.sentence_lengths.tolist() == [1, 2, 1, 3]
    assert columns.ids.tolist() == [16, 10, 11, 12, 13, 14, 15]
    kept = columns.kept(np.array([True, False, True]))
    assert kept.documents["content"].tolist() == [7, 6]
    assert kept.sentence_lengths.tolist() == [1, 3]
    assert kept.ids.tolist() == [16, 13, 14, 15]
