"""Documents out of text files: blank-line separated, one a file, or JSON lines; also compressed.

A document is known by the byte offset of its first line in the (decompressed) file, whatever part
of the file is read: `read_chunks(path, format, start, end)` gives the documents that begin in
[start, end), and parts that touch give each document once. Text must be UTF-8; a byte order mark
at the start is dropped. Cleaning is left to others.

Files are read a chunk at a time, so that memory is bounded whatever their size. A document longer
than `LONGEST_PIECE` comes in pieces, cut at line ends, that are known to belong together. A JSON
line is read as a whole.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from data_prep.contract.compiled import compiled
from data_prep.contract.errors import InputError
from data_prep.contract.format import IntArray
from data_prep.text.inputs import TextFormat, is_compressed, is_gzip, is_json_lines, is_zstandard
from data_prep.text.zstandard_file import open_zstandard

LONGEST_PIECE = 8 << 20
"""Bytes; a longer document is cut."""
CHUNK_BYTES = 2 << 20
"""Of a file that is read at a time."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TextChunk(NamedTuple):
    """Some documents that follow each other in a file, as UTF-8."""

    data: bytes
    """The text of all of them, checked; between them may lie anything."""
    starts: IntArray
    """int64 [n], first byte of each in `data`."""
    ends: IntArray
    """int64 [n], the byte after each."""
    offsets: npt.NDArray[np.uint64]
    """uint64 [n], where each begins in the decompressed file."""
    is_continued: bool = False
    """The first one goes on where the last one of the chunk before was cut."""

    def texts(self) -> list[str]:
        """Return the documents as text."""
        spans = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return [self.data[start:end].decode() for start, end in spans]


class _Line(NamedTuple):
    offset: int
    """Its first byte in the file."""
    content: bytes
    """Its bytes."""


def open_text(path: str) -> BinaryIO:
    """Open an input file for reading its decompressed bytes.

    Raises:
        UsageError: a `.zst` file, and `zstandard` is not installed.
        InputError: the file cannot be opened.
    """
    try:
        if is_gzip(path):
            return cast(BinaryIO, gzip.open(path, "rb"))
        if is_zstandard(path):
            return cast(BinaryIO, open_zstandard(path))
        return open(path, "rb")
    except OSError as err:
        raise InputError(f"{path}: cannot be read ({err.strerror or err}).") from err


def read_chunks(
    path: str, text_format: TextFormat, start: int = 0, end: int | None = None
) -> Iterator[TextChunk]:
    """Yield the documents of `path` that begin in [start, end), some at a time.

    Args:
        path: an input file.
        text_format: how documents lie in it.
        start: byte offset, at the begin of a document; 0 for a compressed file.
        end: byte offset, or None for the end of the file.

    Raises:
        InputError: not UTF-8, not JSON, no text in the field, or a damaged compressed file.
    """
    with open_text(path) as file:
        if start:
            file.seek(start)
        if is_json_lines(path):
            yield from _json_chunks(path, file, start, end, text_format.json_field)
        else:
            yield from _TextCutter(path, file, start, end, text_format).chunks()


class _TextCutter:
    """Cuts text without structure into documents."""

    def __init__(
        self, path: str, file: BinaryIO, start: int, end: int | None, text_format: TextFormat
    ) -> None:
        self._path, self._file, self._end = path, file, end
        self._is_one_document = text_format.one_document_per_file
        self._data = b""
        self._offset = start  # of `_data` in the file
        self._is_last = False  # nothing comes after `_data`
        self._is_cut = False  # `_data` begins where a document was cut

    def chunks(self) -> Iterator[TextChunk]:
        """Yield all chunks."""
        self._fill(CHUNK_BYTES)
        if self._offset == 0 and self._data.startswith(BYTE_ORDER_MARK):
            self._drop(len(BYTE_ORDER_MARK))
        while self._data:
            starts, ends = self._documents()
            if not len(starts) and not self._is_last:
                self._fill(len(self._data) + max(len(self._data), CHUNK_BYTES))
                continue
            if len(starts):
                yield from self._chunk(starts, ends)
                if self._end is not None and self._offset >= self._end and not self._is_cut:
                    return
            else:
                self._drop(len(self._data))
            self._fill(CHUNK_BYTES)

    def _fill(self, size: int) -> None:
        """Read until `_data` has `size` bytes or the file ends."""
        while len(self._data) < size and not self._is_last:
            try:
                more = self._file.read(size - len(self._data))
            except (OSError, EOFError, zlib.error) as err:
                place = self._offset + len(self._data)
                raise InputError(
                    f"{self._path}: cannot be read on after byte {place} ({err}); the file is "
                    "damaged."
                ) from err
            self._data += more
            self._is_last = not more

    def _drop(self, size: int) -> None:
        """Drop the first `size` bytes of what was read."""
        self._data, self._offset = self._data[size:], self._offset + size

    def _documents(self) -> tuple[IntArray, IntArray]:
        """Return the first byte and the byte after of the documents that can be handed on."""
        size = len(self._data)
        if self._is_one_document:
            if self._is_last or size > LONGEST_PIECE:
                return np.zeros(1, np.int64), np.full(1, size)
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        data = np.frombuffer(self._data, np.uint8)
        starts = np.empty(size // 2 + 1, np.int64)
        ends = np.empty_like(starts)
        found = find_documents(data, self._is_last, LONGEST_PIECE, starts, ends)
        return starts[:found], ends[:found]

    def _chunk(self, starts: IntArray, ends: IntArray) -> Iterator[TextChunk]:
        """Yield the chunk of some documents, if one of them begins before `end`; drop their text.

        Of the first document that is too long one piece is taken, and none that follow it.
        """
        is_continued = self._is_cut and bool(starts[0] == 0)
        too_long = np.flatnonzero(ends - starts > LONGEST_PIECE)
        self._is_cut = len(too_long) > 0
        used = int(ends[-1])
        if self._is_cut:
            last = int(too_long[0])
            piece_end, used = self._piece_end(int(starts[last]))
            starts, ends = starts[: last + 1], np.append(ends[:last], piece_end)
        offsets = starts.astype(np.uint64) + np.uint64(self._offset)
        kept = len(starts)
        if self._end is not None:
            kept = max(int(np.searchsorted(offsets, self._end)), int(is_continued))
            self._is_cut &= kept == len(starts)
        if kept:
            data = self._data[: int(ends[kept - 1])]
            decoded(self._path, data, self._offset)
            yield TextChunk(data, starts[:kept], ends[:kept], offsets[:kept], is_continued)
        self._drop(used)

    def _piece_end(self, start: int) -> tuple[int, int]:
        """Return where to cut the document at `start`: behind a line, a blank, or a character.

        Returns:
            The end of the piece, and where the rest begins: not between a line and its end, which
            would make the rest of it a blank line.
        """
        limit = start + LONGEST_PIECE
        place = self._data.rfind(b"\n", start + 1, limit)
        if place > start:
            return place + 1, place + 1
        place = self._data.rfind(b" ", start + 1, limit) + 1
        if place <= start + 1:
            place = limit
            while self._data[place] & 0xC0 == 0x80:
                place -= 1
        while not self._is_last and not self._data[place:].strip():
            self._fill(len(self._data) + CHUNK_BYTES)
        line_end = self._data.find(b"\n", place)
        is_blank = line_end >= 0 and not self._data[place:line_end].strip()
        return place, line_end + 1 if is_blank else place


@compiled
def find_documents(
    data: npt.NDArray[np.uint8], is_last: bool, longest: int, starts: IntArray, ends: IntArray
) -> int:
    """Find runs of lines that hold more than white space.

    Args:
        data: UTF-8, from the begin of a line on.
        is_last: nothing comes after `data`; otherwise its last run does not count, unless it is
            longer than `longest`.
        longest: bytes of a document that is not cut.
        starts: gets the first byte of each.
        ends: gets the byte after each.

    Returns:
        How many.
    """
    found, line, start, end = 0, 0, -1, 0
    while line < len(data):
        place, is_blank = line, True
        while place < len(data) and data[place] != 10:
            byte = data[place]
            if byte > 32 or byte < 9 or 13 < byte < 32:
                is_blank = False
                while place < len(data) and data[place] != 10:
                    place += 1
                break
            place += 1
        is_whole = place < len(data)
        place = min(place + 1, len(data))
        if not is_blank:
            start = line if start < 0 else start
            end = place
        elif start >= 0 and (is_whole or is_last):
            starts[found], ends[found] = start, end
            found += 1
            start = -1
        line = place
    if start >= 0 and (is_last or len(data) - start > longest):
        starts[found], ends[found] = start, end if is_last else len(data)
        found += 1
    return found


def decoded(path: str, data: bytes, offset: int) -> str:
    """Return some bytes of a file as text.

    Args:
        path: the name of the file, for errors.
        data: the bytes.
        offset: where in the decompressed file they begin.

    Raises:
        InputError: they are not UTF-8.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as err:
        place = offset + err.start
        raise InputError(
            f"{path}: not UTF-8 at byte {place}, line {line_number(path, place)} "
            f"(byte 0x{data[err.start]:02x}, {err.reason}); convert the file to UTF-8, "
            "for example with iconv."
        ) from err


def _json_chunks(
    path: str, file: BinaryIO, start: int, end: int | None, field: str
) -> Iterator[TextChunk]:
    """Yield the text in `field` of every line that is not blank."""
    texts: list[bytes] = []
    offsets: list[int] = []
    size = 0
    for offset, text in json_documents(path, file, start, end, field):
        texts.append(text)
        offsets.append(offset)
        size += len(text)
        if size >= CHUNK_BYTES:
            yield _joined(texts, offsets)
            texts, offsets, size = [], [], 0
    if texts:
        yield _joined(texts, offsets)


def json_documents(
    path: str, file: BinaryIO, start: int, end: int | None, field: str
) -> Iterator[tuple[int, bytes]]:
    """Yield offset, and text in `field` as UTF-8, of every line that is not blank.

    Args:
        path: the name of the file, for errors.
        file: its decompressed bytes, at `start`.
        start: byte offset of a line.
        end: byte offset; no line that begins there or later is read. None reads to the end.
        field: the field of a line that holds the document.

    Raises:
        InputError: see `read_chunks`.
    """
    for line in _lines(file, path, start):
        if end is not None and line.offset >= end:
            return
        if line.content.strip():
            content = decoded(path, line.content, line.offset)
            yield line.offset, _json_text(path, line, content, field)


def _joined(texts: list[bytes], offsets: list[int]) -> TextChunk:
    """Return texts as one chunk."""
    sizes = np.array([len(text) for text in texts], np.int64)
    ends = np.cumsum(sizes)
    return TextChunk(b"".join(texts), ends - sizes, ends, np.array(offsets, np.uint64))


def _lines(file: BinaryIO, path: str, start: int) -> Iterator[_Line]:
    """Yield lines with their offsets; the byte order mark is taken off the first."""
    offset = start
    try:
        for content in file:
            is_marked = offset == 0 and content.startswith(BYTE_ORDER_MARK)
            skipped = len(BYTE_ORDER_MARK) if is_marked else 0
            yield _Line(offset + skipped, content[skipped:])
            offset += len(content)
    except (OSError, EOFError, zlib.error) as err:
        raise InputError(
            f"{path}: cannot be read on after byte {offset} ({err}); the file is damaged."
        ) from err


def _json_text(path: str, line: _Line, content: str, field: str) -> bytes:
    """Return the text of one JSON line as UTF-8; InputError names file and line."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError) as err:
        raise _json_error(path, line, f"not JSON ({err}); every line must be one object") from err
    if not isinstance(record, dict) or not isinstance(record.get(field), str):
        found = sorted(record) if isinstance(record, dict) else type(record).__name__
        raise _json_error(
            path, line, f"no text in field {field!r} (found {found}); name it with --json-field"
        )
    try:
        return cast(str, record[field]).encode("utf-8")
    except UnicodeEncodeError as err:
        rule = f"half a surrogate pair in field {field!r} ({err.reason}); no such character exists"
        raise _json_error(path, line, rule) from err


def _json_error(path: str, line: _Line, what: str) -> InputError:
    """Return an error about one JSON line."""
    return InputError(f"{path}, line {line_number(path, line.offset)}: {what}.")


def line_number(path: str, offset: int) -> int:
    """Return the number (from 1) of the line that holds byte `offset` of the decompressed file."""
    number, left = 1, offset
    with open_text(path) as file:
        while left and (chunk := file.read(min(left, 1 << 20))):
            number += chunk.count(b"\n")
            left -= len(chunk)
    return number


def cut_points(path: str, text_format: TextFormat, size: int, step: int) -> list[int]:
    """Return offsets at which a file can be cut into parts of about `step` bytes.

    Args:
        path: an input file.
        text_format: how documents lie in it.
        size: bytes of the file.
        step: wanted bytes of a part.

    Returns:
        Increasing offsets, each at the begin of a line where a document may begin; 0 and `size`
        are not among them. Empty where the file must be read as a whole.
    """
    is_one_document = text_format.one_document_per_file and not is_json_lines(path)
    if size <= step or is_compressed(path) or is_one_document:
        return []
    cuts: list[int] = []
    with open_text(path) as file:
        while (cuts[-1] if cuts else 0) + step < size:
            file.seek((cuts[-1] if cuts else 0) + step)
            _skip_line(file)
            if not is_json_lines(path):
                while _skip_line(file):
                    pass
            if file.tell() >= size:
                break
            cuts.append(file.tell())
    return cuts


def _skip_line(file: BinaryIO) -> bool:
    """Read to the end of the line; return whether it holds more than white space."""
    has_text = False
    while part := file.readline(CHUNK_BYTES):
        has_text |= bool(part.strip())
        if part.endswith(b"\n"):
            break
    return has_text
