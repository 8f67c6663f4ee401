"""Spills: sections come back as they were, and documents can be left out."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from data_prep.contract.errors import DataError
from data_prep.pieces.encode import Encoded
from data_prep.stages import spill
from data_prep.stages.spill import (
    Section,
    SpillWriter,
    concat,
    read_sections,
    section_table,
    take_spans,
)

DTYPE = np.dtype(np.uint16)


def encoded_of(documents: list[tuple[int, list[list[int]]]]) -> Encoded:
    """Documents out of content hashes and sentences of ids."""
    sentences = [sentence for _, document in documents for sentence in document]
    return Encoded(
        np.array([len(document) for _, document in documents]),
        np.array([content for content, _ in documents], np.uint64),
        np.array([len(sentence) for sentence in sentences], np.uint32),
        np.array([piece for sentence in sentences for piece in sentence], DTYPE),
    )


@pytest.mark.parametrize("held", [1, 5, 1 << 22])
def test_sections_come_back_with_their_documents_however_often_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(spill, "_HELD_TOKENS", held)
    path = tmp_path / "a"
    with path.open("wb") as file:
        writer = SpillWriter(file, DTYPE)
        offsets = np.array([0, 50], np.uint64)
        first = encoded_of([(2**64 - 1, [[10, 11], [12]]), (7, [[16]])])
        writer.add(
            first, (np.zeros(2, np.uint32), offsets), np.array([False, False]), np.array([1, 0])
        )
        second = encoded_of([(6, [[13, 14, 15]]), (8, [[17]])])
        places = np.array([2**40, 2**41], np.uint64)
        writer.add(
            second, (np.ones(2, np.uint32), places), np.array([False, True]), np.array([1, 1])
        )
        writer.flush()
    sections = writer.sections
    assert sum(section.documents for section in sections) == 4
    assert len(sections) == (4 if held == 1 else 3)
    table = section_table(sections)
    assert [Section(*row) for row in table.tolist()] == sections
    for is_valid, bucket, expected in [
        (False, 0, [(0, 50, 7, 1)]),
        (False, 1, [(0, 0, 2**64 - 1, 2), (1, 2**40, 6, 1)]),
        (True, 1, [(1, 2**41, 8, 1)]),
    ]:
        chosen = [s for s in sections if (s.is_valid, s.bucket) == (is_valid, bucket)]
        columns = concat(read_sections(path, chosen, DTYPE))
        assert columns.documents.tolist() == expected
    of_train_1 = [s for s in sections if (s.is_valid, s.bucket) == (False, 1)]
    columns = concat(read_sections(path, of_train_1, DTYPE))
    assert columns.sentence_lengths.tolist() == [2, 1, 3]
    assert columns.ids.tolist() == [10, 11, 12, 13, 14, 15]
    taken = columns.select(np.array([1]))
    assert taken.documents["content"].tolist() == [6]
    assert taken.sentence_lengths.tolist() == [3]
    assert taken.ids.tolist() == [13, 14, 15]


def test_sections_of_one_split_lie_together_and_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    count = 200
    documents = [(number, [[number]]) for number in range(count)]
    with path.open("wb") as file:
        writer = SpillWriter(file, DTYPE)
        is_valid = np.arange(count) % 3 == 0
        places = np.zeros(count, np.uint32), np.arange(count).astype(np.uint64)
        writer.add(encoded_of(documents), places, is_valid, np.arange(count)[::-1])
        writer.flush()
    reads: list[int] = []

    class Counted(BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            reads.append(0 if size is None else size)
            return super().read(size)

    content = path.read_bytes()
    monkeypatch.setattr(Path, "open", lambda path, mode: Counted(content))
    for split in (False, True):
        chosen = [section for section in writer.sections if section.is_valid == split]
        wanted = chosen[3:20]
        reads.clear()
        columns = list(read_sections(path, wanted, DTYPE))
        assert len(reads) == 1
        assert [c.ids.tolist() for c in columns] == [[count - 1 - s.bucket] for s in wanted]
        reads.clear()
        apart = list(read_sections(path, chosen[::2], DTYPE))
        assert len(reads) == len(apart) == -(-len(chosen) // 2)
        assert [c.ids.tolist() for c in apart] == [[count - 1 - s.bucket] for s in chosen[::2]]
    monkeypatch.undo()
    path.write_bytes(content[:-1])
    with pytest.raises(DataError, match="cut off"):
        list(read_sections(path, writer.sections, DTYPE))
    path.unlink()
    with pytest.raises(DataError, match="is damaged"):
        list(read_sections(path, writer.sections, DTYPE))


def test_nothing_gives_no_section() -> None:
    writer = SpillWriter(BytesIO(), DTYPE)
    writer.flush()
    assert writer.sections == []


def test_spans_are_taken_in_the_order_asked_for() -> None:
    values = np.arange(10, 20, dtype=np.uint32)
    taken = take_spans(values, np.array([5, 0, 9]), np.array([2, 0, 1]))
    assert taken.tolist() == [15, 16, 19]
    assert taken.dtype == np.uint32
