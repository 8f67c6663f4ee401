"""Documents out of text files: blank-line separated, one a file, or JSON lines; also compressed.

A document is known by the byte offset of its first line in the (decompressed) file, whatever part
of the file is read: `read_documents(path, start, end)` yields the documents that begin in
[start, end), and parts that touch give each document once. Text must be UTF-8; a byte order mark
at the start is dropped. Cleaning is left to `data_prep.clean`.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple, cast

from data_prep.errors import InputError
from data_prep.inputs import TextFormat, is_compressed, is_json_lines
from data_prep.zstandard_file import open_zstandard

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Document(NamedTuple):
    """One document as it stands in its file."""

    offset: int
    """Byte offset of its first line in the decompressed file."""
    text: str


class _Line(NamedTuple):
    offset: int
    content: bytes


def open_text(path: str) -> BinaryIO:
    """Opens an input file for reading its decompressed bytes.

    Raises:
        UsageError: a `.zst` file, and `zstandard` is not installed.
        InputError: the file cannot be opened.
    """
    try:
        if path.endswith(".gz"):
            return cast(BinaryIO, gzip.open(path, "rb"))
        if path.endswith(".zst"):
            return cast(BinaryIO, open_zstandard(path))
        return open(path, "rb")
    except OSError as err:
        raise InputError(f"{path}: cannot be read ({err.strerror or err}).") from err


def read_documents(
    path: str, text_format: TextFormat, start: int = 0, end: int | None = None
) -> Iterator[Document]:
    """The documents of `path` that begin in [start, end), one after the other.

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
        lines = _lines(file, path, start)
        if is_json_lines(path):
            yield from _json_documents(path, _before(lines, end), text_format.json_field)
        elif text_format.one_document_per_file:
            yield _decoded(path, list(lines))
        else:
            yield from _blank_line_documents(path, lines, end)


def _lines(file: BinaryIO, path: str, start: int) -> Iterator[_Line]:
    """Lines with their offsets; the byte order mark is taken off the first."""
    offset = start
    try:
        for content in file:
            is_marked = offset == 0 and content.startswith(_BYTE_ORDER_MARK)
            skipped = len(_BYTE_ORDER_MARK) if is_marked else 0
            yield _Line(offset + skipped, content[skipped:])
            offset += len(content)
    except (OSError, EOFError, zlib.error) as err:
        raise InputError(
            f"{path}: cannot be read on after byte {offset} ({err}); the file is damaged."
        ) from err


def _before(lines: Iterable[_Line], end: int | None) -> Iterator[_Line]:
    """The lines that begin before `end`."""
    for line in lines:
        if end is not None and line.offset >= end:
            return
        yield line


def _blank_line_documents(path: str, lines: Iterator[_Line], end: int | None) -> Iterator[Document]:
    """Runs of lines that hold more than white space."""
    document: list[_Line] = []
    for line in lines:
        if line.content.strip():
            if not document and end is not None and line.offset >= end:
                return
            document.append(line)
        elif document:
            yield _decoded(path, document)
            document = []
    if document:
        yield _decoded(path, document)


def _decoded(path: str, lines: list[_Line]) -> Document:
    """The document of `lines`; InputError where they are not UTF-8."""
    offset = lines[0].offset if lines else 0
    content = b"".join(line.content for line in lines)
    try:
        return Document(offset, content.decode("utf-8"))
    except UnicodeDecodeError as err:
        place = offset + err.start
        raise InputError(
            f"{path}: not UTF-8 at byte {place}, line {line_number(path, place)} "
            f"(byte 0x{content[err.start]:02x}, {err.reason}); convert the file to UTF-8, "
            "for example with iconv."
        ) from err


def _json_documents(path: str, lines: Iterable[_Line], field: str) -> Iterator[Document]:
    """The text in `field` of every line that is not blank."""
    for line in lines:
        if line.content.strip():
            text = _json_text(path, line, _decoded(path, [line]).text, field)
            yield Document(line.offset, text)


def _json_text(path: str, line: _Line, content: str, field: str) -> str:
    """The text of one JSON line; InputError names file and line."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError) as err:
        raise _json_error(path, line, f"not JSON ({err}); every line must be one object") from err
    if not isinstance(record, dict) or not isinstance(record.get(field), str):
        found = sorted(record) if isinstance(record, dict) else type(record).__name__
        raise _json_error(
            path, line, f"no text in field {field!r} (found {found}); name it with --json-field"
        )
    text = cast(str, record[field])
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as err:
        rule = f"half a surrogate pair in field {field!r} ({err.reason}); no such character exists"
        raise _json_error(path, line, rule) from err
    return text


def _json_error(path: str, line: _Line, what: str) -> InputError:
    """An error about one JSON line."""
    return InputError(f"{path}, line {line_number(path, line.offset)}: {what}.")


def line_number(path: str, offset: int) -> int:
    """The number (from 1) of the line that holds byte `offset` of the decompressed file."""
    number, left = 1, offset
    with open_text(path) as file:
        while left and (chunk := file.read(min(left, 1 << 20))):
            number += chunk.count(b"\n")
            left -= len(chunk)
    return number


def cut_points(path: str, text_format: TextFormat, size: int, step: int) -> list[int]:
    """Offsets at which a file can be cut into parts of about `step` bytes.

    Args:
        path: an input file.
        text_format: how documents lie in it.
        size: bytes of the file.
        step: wanted bytes of a part.

    Returns:
        Increasing offsets, each at the begin of a line where a document may begin; 0 and `size`
        are not among them. Empty where the file must be read as a whole.
    """
    if is_compressed(path) or (text_format.one_document_per_file and not is_json_lines(path)):
        return []
    cuts: list[int] = []
    with open_text(path) as file:
        while (cuts[-1] if cuts else 0) + step < size:
            file.seek((cuts[-1] if cuts else 0) + step)
            file.readline()
            if not is_json_lines(path):
                while file.readline().strip():
                    pass
            if file.tell() >= size:
                break
            cuts.append(file.tell())
    return cuts
