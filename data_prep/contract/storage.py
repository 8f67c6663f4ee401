"""Files that a kill leaves old or new, never half-written, and checksums of files.

Both packages write through `replaced_file`; each turns the OSError into an error of its own.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

TEMPORARY_SUFFIX = ".tmp"
_READ_BYTES = 1 << 20


@contextmanager
def replaced_file(path: Path, is_durable: bool = True) -> Iterator[BinaryIO]:
    """Return a binary file that appears under `path` only once it is whole.

    Args:
        path: the final name; the temporary file lies in the same folder.
        is_durable: whether name and content survive a power cut. False does not wait for the
            disk; a checksum kept elsewhere must then show whether they did. A kill leaves the file
            old or new either way.

    Raises:
        OSError: the folder or file cannot be written, or the disk is full.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("wb") as file:
            yield file
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if is_durable:
            sync(path.parent)
    finally:
        with suppress(OSError):  # must not hide the error that led here
            temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file's content, or the names within a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_file(path: Path) -> str:
    """Return the sha256 of the file's bytes, hexadecimal; OSError where it cannot be read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def crc32_file(path: Path) -> int:
    """Return the CRC-32 of the file's bytes: against damage, not against malice."""
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            crc = zlib.crc32(chunk, crc)
    return crc
