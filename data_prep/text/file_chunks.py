"""Many files as few chunks: small files are read whole and put together, large ones in parts.

What comes after reading (tokenising, hashing, spilling) costs some fifty microseconds a call,
whatever it is given; a small file costs ten, if nothing is done for it alone. So the documents of
small files are found by one call for all of them, and go on as one chunk. Documents, offsets and
errors are those of `readers.read_chunks` for each file.
"""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from data_prep.contract.compiled import compiled
from data_prep.contract.errors import InputError
from data_prep.contract.format import IntArray
from data_prep.text import readers
from data_prep.text.input_files import InputFiles
from data_prep.text.inputs import TextFormat, is_compressed, is_json_lines
from data_prep.text.readers import (
    BYTE_ORDER_MARK,
    TextChunk,
    decoded,
    find_documents,
    json_documents,
)

_PATHS_AT_ONCE = 1 << 12


class FileChunk(NamedTuple):
    """Some documents of some files."""

    text: TextChunk
    """The text."""
    inputs: npt.NDArray[np.uint32]
    """uint32 [n]: the number of the file of each document."""


def read_files(
    files: InputFiles,
    text_format: TextFormat,
    number: int = 0,
    start: int = 0,
    end: int | None = None,
) -> Iterator[FileChunk]:
    """Yield the documents of some files, some at a time.

    Args:
        files: the files.
        text_format: how documents lie in them.
        number: number of the first file.
        start: byte offset; other than 0 for a single file alone, as `end` other than None. See
            `readers.read_chunks`.
        end: byte offset, or None for the end of the file.

    Raises:
        InputError: text that cannot be used, or a file that has changed since it was found.
    """
    most = min(readers.CHUNK_BYTES, readers.LONGEST_PIECE)
    is_whole = start == 0 and end is None
    gathered = _Gathered(text_format)
    for file_number, (path, stamp) in enumerate(_stamped(files), number):
        small = _small_file(path, stamp, most) if is_whole else None
        if small is None or gathered.bytes + len(small) > most:
            yield from gathered.chunk()
            gathered = _Gathered(text_format)
        name = os.fsdecode(path)
        if small is not None:
            gathered.add(file_number, name, small)
            continue
        for chunk in _read_large(name, text_format, start, end):
            yield FileChunk(chunk, np.full(len(chunk.offsets), file_number, np.uint32))
        _check_unchanged(name, os.stat(path), stamp)
    yield from gathered.chunk()


def _stamped(files: InputFiles) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Yield the path of every file, and size and time by which a change of it is noticed."""
    for first in range(0, len(files), _PATHS_AT_ONCE):
        rows = slice(first, min(first + _PATHS_AT_ONCE, len(files)))
        stamps = zip(files.sizes[rows].tolist(), files.changed_ns[rows].tolist(), strict=True)
        yield from zip(files.paths(rows.start, rows.stop), stamps, strict=True)


def _read_large(
    path: str, text_format: TextFormat, start: int, end: int | None
) -> Iterator[TextChunk]:
    """Yield the chunks of one file; raise InputError with its name where it cannot be read."""
    try:
        yield from readers.read_chunks(path, text_format, start, end)
    except OSError as err:
        raise InputError(f"{path}: cannot be read ({err.strerror or err}).") from err


def _small_file(path: bytes, stamp: tuple[int, int], most: int) -> bytes | None:
    """Return all decompressed bytes of a file; None where there are more than `most`."""
    if stamp[0] > most:
        return None
    name = os.fsdecode(path)
    if is_compressed(name):
        return _small_compressed_file(name, stamp, most)
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            data = os.read(descriptor, stamp[0] + 1)
            _check_unchanged(name, os.fstat(descriptor), stamp)
        finally:
            os.close(descriptor)
    except OSError as err:
        raise InputError(f"{name}: cannot be read ({err.strerror or err}).") from err
    return data if len(data) == stamp[0] else None


def _small_compressed_file(name: str, stamp: tuple[int, int], most: int) -> bytes | None:
    """Return the same for a compressed file; None also for a damaged one, to be read in parts."""
    try:
        with readers.open_text(name) as file:
            data = file.read(most + 1)
        _check_unchanged(name, os.stat(name), stamp)
    except (OSError, EOFError, zlib.error):
        return None
    return data if len(data) <= most else None


def _check_unchanged(path: str, status: os.stat_result, stamp: tuple[int, int]) -> None:
    """Raise InputError where a file was changed since it was found: perhaps since its checksum."""
    if (status.st_size, status.st_mtime_ns) != stamp:
        raise InputError(
            f"{path}: changed while it was read; run the command again when it is done."
        )


class _Gathered:
    """Small files to become one chunk."""

    def __init__(self, text_format: TextFormat) -> None:
        self._format = text_format
        self._parts: list[bytes] = []
        self._numbers: list[int] = []
        self._offsets: list[int] = []
        """Where each part begins in its file."""
        self._is_document: list[bool] = []
        """Whether a part is one document; otherwise blank lines separate some."""
        self._paths: list[str] = []
        self.bytes = 0
        """Bytes of all parts."""

    def add(self, number: int, path: str, data: bytes) -> None:
        """Add a file."""
        if is_json_lines(path):
            file = io.BytesIO(data)
            for offset, text in json_documents(path, file, 0, None, self._format.json_field):
                self._add(number, path, offset, text, True)
        else:
            offset = len(BYTE_ORDER_MARK) if data.startswith(BYTE_ORDER_MARK) else 0
            if len(data) > offset:
                text = data[offset:] if offset else data
                self._add(number, path, offset, text, self._format.one_document_per_file)

    def _add(self, number: int, path: str, offset: int, part: bytes, is_document: bool) -> None:
        """Add a part of a file."""
        self._parts.append(part)
        self._numbers.append(number)
        self._offsets.append(offset)
        self._is_document.append(is_document)
        self._paths.append(path)
        self.bytes += len(part)

    def chunk(self) -> Iterator[FileChunk]:
        """Yield the chunk, if there is a document for one."""
        data = b"\n".join(self._parts)  # no character reaches from one part into the next
        sizes = np.array([len(part) for part in self._parts], np.int64)
        part_starts = np.cumsum(sizes + 1) - sizes - 1
        starts, ends, owners = self._documents(data, part_starts, sizes)
        if len(starts):
            self._check(data)
            offsets = np.array(self._offsets, np.int64) - part_starts
            text = TextChunk(data, starts, ends, (starts + offsets[owners]).astype(np.uint64))
            yield FileChunk(text, np.array(self._numbers, np.uint32)[owners])

    def _documents(
        self, data: bytes, part_starts: IntArray, sizes: IntArray
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Return where each document begins and ends, and the part that it lies in."""
        if all(self._is_document):
            return part_starts, part_starts + sizes, np.arange(len(sizes))
        starts = np.empty(len(data) // 2 + len(sizes) + 1, np.int64)
        ends, owners = np.empty_like(starts), np.empty_like(starts)
        found = _find_in_parts(
            np.frombuffer(data, np.uint8),
            part_starts,
            sizes,
            np.array(self._is_document),
            readers.LONGEST_PIECE,
            (starts, ends, owners),
        )
        return starts[:found], ends[:found], owners[:found]

    def _check(self, data: bytes) -> None:
        """Raise InputError that names the file where a part is not UTF-8."""
        try:
            data.decode()
        except UnicodeDecodeError:
            for path, offset, part in zip(self._paths, self._offsets, self._parts, strict=True):
                decoded(path, part, offset)
            raise


@compiled
def _find_in_parts(
    data: npt.NDArray[np.uint8],
    part_starts: IntArray,
    sizes: IntArray,
    is_document: npt.NDArray[np.bool_],
    longest: int,
    out: tuple[IntArray, IntArray, IntArray],
) -> int:
    """Find the documents of many parts.

    Args:
        data: the parts, something between them.
        part_starts: int64 [parts], first byte of each.
        sizes: int64 [parts], bytes of each.
        is_document: bool [parts], whether a part is one document.
        longest: see `readers.find_documents`.
        out: get the first byte of each document, the byte after it, and its part.

    Returns:
        How many documents.
    """
    starts, ends, owners = out
    found = 0
    for part in range(len(part_starts)):
        begin = part_starts[part]
        if is_document[part]:
            starts[found], ends[found], owners[found] = begin, begin + sizes[part], part
            found += 1
            continue
        text = data[begin : begin + sizes[part]]
        count = find_documents(text, True, longest, starts[found:], ends[found:])
        for _ in range(count):
            starts[found] += begin
            ends[found] += begin
            owners[found] = part
            found += 1
    return found
