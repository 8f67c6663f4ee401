"""The files between map and reduce: tokenised documents, in columns, sorted into sections.

A map task writes one spill. A section holds the documents of one split and one fine bucket, so that
a reduce task reads only what it needs. Which split a document is in is decided by its text alone:
equal texts always lie on the same side.

Legend: D documents, S sentences, T tokens of a section.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from data_prep.files import atomic_file
from data_prep.format import IntArray

_DOCUMENT = np.dtype(
    [("input", "<u4"), ("offset", "<u8"), ("content", "<u8"), ("sentences", "<u4")]
)


class TokenisedDocument(NamedTuple):
    """One document after the map stage."""

    input: int
    """Index of its input file."""
    offset: int
    """Byte offset in the decompressed file."""
    content: int
    """Hash of its text, 64 bits."""
    sentence_lengths: list[int]
    """Tokens of each sentence, none of them 0."""
    ids: list[int]
    """Piece ids of all sentences, end to end."""


class Section(NamedTuple):
    """Where a section lies in its spill, and how much it holds."""

    split: str
    bucket: int
    offset: int
    """Bytes from the start of the spill."""
    documents: int
    sentences: int
    tokens: int


@dataclass
class Columns:
    """Documents of one or several sections.

    Attributes:
        documents: [D] of input, offset, content and sentences.
        sentence_lengths: uint32 [S].
        ids: unsigned [T].
    """

    documents: npt.NDArray[Any]
    sentence_lengths: npt.NDArray[np.uint32]
    ids: IntArray

    def kept(self, keep: npt.NDArray[np.bool_]) -> Columns:
        """The documents marked in `keep` [D]."""
        sentence = np.repeat(keep, self.documents["sentences"])
        token = np.repeat(sentence, self.sentence_lengths)
        return Columns(self.documents[keep], self.sentence_lengths[sentence], self.ids[token])


@dataclass
class _Open:
    """A section that is still being filled."""

    documents: list[tuple[int, int, int, int]] = field(default_factory=list)
    sentence_lengths: list[npt.NDArray[np.uint32]] = field(default_factory=list)
    ids: list[IntArray] = field(default_factory=list)


class SpillWriter:
    """Gathers the documents of a map task and writes them section by section.

    Args:
        dtype: dtype of piece ids.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._sections: dict[tuple[str, int], _Open] = {}

    def add(self, document: TokenisedDocument, split: str, bucket: int) -> None:
        """Puts a document into its section."""
        section = self._sections.setdefault((split, bucket), _Open())
        lengths = np.array(document.sentence_lengths, np.uint32)
        section.documents.append((document.input, document.offset, document.content, len(lengths)))
        section.sentence_lengths.append(lengths)
        section.ids.append(np.array(document.ids, self._dtype))

    def write(self, path: Path) -> list[Section]:
        """Writes all sections to `path` and says where they lie."""
        with atomic_file(path) as file:
            return [
                _write_section(file, split, bucket, section)
                for (split, bucket), section in sorted(self._sections.items())
            ]


def _write_section(file: BinaryIO, split: str, bucket: int, section: _Open) -> Section:
    """Writes one section at the end of `file`."""
    offset = file.tell()
    lengths, ids = np.concatenate(section.sentence_lengths), np.concatenate(section.ids)
    file.write(np.array(section.documents, _DOCUMENT).tobytes())
    file.write(lengths.tobytes())
    file.write(ids.tobytes())
    return Section(split, bucket, offset, len(section.documents), len(lengths), len(ids))


def read_section(path: Path, section: Section, dtype: np.dtype[Any]) -> Columns:
    """Reads one section of a spill."""
    with path.open("rb") as file:
        file.seek(section.offset)
        documents = np.fromfile(file, _DOCUMENT, section.documents)
        lengths = np.fromfile(file, np.uint32, section.sentences)
        return Columns(documents, lengths, np.fromfile(file, dtype, section.tokens))


def joined(columns: Iterable[Columns]) -> Columns:
    """Several columns, one after the other; at least one."""
    parts: Sequence[Columns] = list(columns)
    return Columns(
        np.concatenate([part.documents for part in parts]),
        np.concatenate([part.sentence_lengths for part in parts]),
        np.concatenate([part.ids for part in parts]),
    )
