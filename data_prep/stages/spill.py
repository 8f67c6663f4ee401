"""The files between map and reduce: tokenised documents, in columns, sorted into sections.

A map task writes one spill. A section holds documents of one split and one fine bucket, so that a
reduce task reads only what it needs; a task that reads much text writes sections of the same bucket
more than once, and so holds little of it in memory. Sections may be small, down to a single
document: those of one split that follow each other are read at once. Which split a document is in
is decided by its text alone: equal texts always lie on the same side.

Legend: D documents, S sentences, T tokens of a section.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from data_prep.contract.compiled import compiled
from data_prep.contract.errors import DataError
from data_prep.contract.format import IntArray, UnsignedArray
from data_prep.pieces.encode import Encoded
from data_prep.running.files import damaged_work

_DOCUMENT = np.dtype(
    [("input", "<u4"), ("offset", "<u8"), ("content", "<u8"), ("sentences", "<u4")]
)
_HELD_TOKENS = 1 << 22
_VALID = 1 << 32  # above every bucket: sections of one split lie together


class Section(NamedTuple):
    """Where a section lies in its spill, and how much it holds."""

    is_valid: bool
    """Whether it holds documents of the held-out split."""
    bucket: int
    """The fine bucket of its documents."""
    offset: int
    """Bytes from the start of the spill."""
    documents: int
    """Number of documents."""
    sentences: int
    """Number of sentences."""
    tokens: int
    """Number of tokens."""


_SECTION = np.dtype(
    [
        ("is_valid", "?"),
        ("bucket", "<u4"),
        ("offset", "<u8"),
        ("documents", "<u4"),
        ("sentences", "<u4"),
        ("tokens", "<u4"),
    ]
)


def section_table(sections: Iterable[Sequence[Any]]) -> npt.NDArray[Any]:
    """Return sections as an array with the fields of `Section`: a big job has millions."""
    return np.array([tuple(section) for section in sections], _SECTION)


@dataclass
class Columns:
    """Documents of one or several sections."""

    documents: npt.NDArray[Any]
    """[D] of input, offset, content and sentences."""
    sentence_lengths: npt.NDArray[np.uint32]
    """uint32 [S]."""
    ids: UnsignedArray
    """unsigned [T]."""

    def select(self, order: IntArray) -> Columns:
        """Return some of the documents, in the given order [m]."""
        sentences = self.documents["sentences"].astype(np.int64)
        first = np.cumsum(sentences) - sentences
        ends = np.concatenate([[0], np.cumsum(self.sentence_lengths, dtype=np.int64)])
        starts = ends[first]
        tokens = ends[first + sentences] - starts
        return Columns(
            self.documents[order],
            take_spans(self.sentence_lengths, first[order], sentences[order]),
            take_spans(self.ids, starts[order], tokens[order]),
        )


@compiled
def take_spans(values: npt.NDArray[Any], starts: IntArray, sizes: IntArray) -> npt.NDArray[Any]:
    """Return the elements of some spans, one span after the other.

    Args:
        values: one-dimensional.
        starts: int64 [m], first index of each span.
        sizes: int64 [m], elements of each span.
    """
    taken = np.empty(sizes.sum(), values.dtype)
    place = 0
    for span in range(len(starts)):
        for index in range(starts[span], starts[span] + sizes[span]):
            taken[place] = values[index]
            place += 1
    return taken


class SpillWriter:
    """Gathers the documents of a map task and writes them section by section.

    Args:
        file: the spill, empty.
        dtype: dtype of piece ids.
    """

    def __init__(self, file: BinaryIO, dtype: np.dtype[Any]) -> None:
        self._file, self._dtype = file, dtype
        self._held: list[tuple[Columns, IntArray]] = []
        self._held_tokens = 0
        self.sections: list[Section] = []
        """Where all sections lie that were written."""

    def add(
        self,
        encoded: Encoded,
        place: tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]],
        is_valid: npt.NDArray[np.bool_],
        bucket: IntArray,
    ) -> None:
        """Take documents in.

        Args:
            encoded: the documents; each holds a piece.
            place: the input of each, and its offset there.
            is_valid: bool [D], whether each is held out.
            bucket: int64 [D].
        """
        documents = np.empty(len(bucket), _DOCUMENT)
        documents["input"], documents["offset"] = place
        documents["content"], documents["sentences"] = encoded.content, encoded.num_sentences
        columns = Columns(documents, encoded.sentence_lengths, encoded.ids)
        self._held.append((columns, bucket + is_valid * _VALID))
        self._held_tokens += len(encoded.ids)
        if self._held_tokens >= _HELD_TOKENS:
            self.flush()

    def flush(self) -> None:
        """Write what is held."""
        if not self._held:
            return
        columns = concat(columns for columns, _ in self._held)
        keys = np.concatenate([keys for _, keys in self._held])
        self._held, self._held_tokens = [], 0
        if not len(keys):
            return
        order = np.argsort(keys, kind="stable")
        columns, keys = columns.select(order), keys[order]
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        ends = [*starts[1:].tolist(), len(keys)]
        sentences = np.concatenate([[0], np.cumsum(columns.documents["sentences"], dtype=int)])
        tokens = np.concatenate([[0], np.cumsum(columns.sentence_lengths, dtype=int)])
        for start, end in zip(starts.tolist(), ends, strict=True):
            first, last = int(sentences[start]), int(sentences[end])
            part = Columns(
                columns.documents[start:end],
                columns.sentence_lengths[first:last],
                columns.ids[int(tokens[first]) : int(tokens[last])],
            )
            is_valid, bucket = divmod(int(keys[start]), _VALID)
            self.sections.append(_write_section(self._file, bool(is_valid), bucket, part))


def _write_section(file: BinaryIO, is_valid: bool, bucket: int, columns: Columns) -> Section:
    """Write one section at the end of `file`."""
    offset = file.tell()
    file.write(columns.documents.tobytes())
    file.write(columns.sentence_lengths.tobytes())
    file.write(columns.ids.tobytes())
    counts = len(columns.documents), len(columns.sentence_lengths), len(columns.ids)
    return Section(is_valid, bucket, offset, *counts)


def read_sections(
    path: Path, sections: Sequence[Section], dtype: np.dtype[Any]
) -> Iterator[Columns]:
    """Read some sections of a spill; those that lie end to end by one read.

    Args:
        path: the spill.
        sections: in increasing order of their offsets.
        dtype: dtype of piece ids.

    Raises:
        DataError: it is missing or cut off.
    """
    sizes = [_bytes_of(section, dtype) for section in sections]
    ends = [section.offset + size for section, size in zip(sections, sizes, strict=True)]
    borders = [
        number for number in range(1, len(sections)) if sections[number].offset != ends[number - 1]
    ]
    try:
        with path.open("rb") as file:
            for first, last in pairwise([0, *borders, len(sections)]):
                start = sections[first].offset
                file.seek(start)
                data = file.read(ends[last - 1] - start)
                if len(data) != ends[last - 1] - start:
                    raise DataError(damaged_work(path, ValueError("it is cut off")))
                for section in sections[first:last]:
                    yield _section_in(data, section, section.offset - start, dtype)
    except OSError as err:
        raise DataError(damaged_work(path, err)) from err


def _bytes_of(section: Section, dtype: np.dtype[Any]) -> int:
    """Return the size of a section in its spill."""
    of_documents = section.documents * _DOCUMENT.itemsize + section.sentences * 4
    return of_documents + section.tokens * dtype.itemsize


def _section_in(data: bytes, section: Section, place: int, dtype: np.dtype[Any]) -> Columns:
    """Return the section that begins at byte `place` of `data`."""
    documents = np.frombuffer(data, _DOCUMENT, section.documents, place)
    place += documents.nbytes
    lengths = np.frombuffer(data, np.uint32, section.sentences, place)
    return Columns(
        documents, lengths, np.frombuffer(data, dtype, section.tokens, place + lengths.nbytes)
    )


def concat(columns: Iterable[Columns]) -> Columns:
    """Return several columns, one after the other; at least one."""
    parts: Sequence[Columns] = list(columns)
    return Columns(
        np.concatenate([part.documents for part in parts]),
        np.concatenate([part.sentence_lengths for part in parts]),
        np.concatenate([part.ids for part in parts]),
    )
