"""Sizes and contents of the input files: SHA-256 of each, by all workers.

Files are handed out some at a time, small ones by the thousand, so that neither one large file nor
a million of small ones is work for a single process.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from data_prep.contract.errors import InputError
from data_prep.contract.format import IntArray
from data_prep.text.input_files import DIGEST_BYTES, InputFiles, split_names

FILE_BYTES = 256
"""To open a file takes as long as to read so many bytes more: files are shared out by size, and
empty ones must not count as nothing."""
_ITEM_BYTES = 64 << 20
_ITEM_FILES = 2048
_READ_BYTES = 1 << 20


class HashItem(NamedTuple):
    """Some files to be hashed."""

    names: bytes
    """Their paths, end to end."""
    name_ends: list[int]
    """Where each ends."""
    bytes: int
    """Size of all of them."""


def hash_items(files: InputFiles) -> list[HashItem]:
    """Return all files in items of about equal cost."""
    costs = np.maximum(files.sizes, _ITEM_BYTES // _ITEM_FILES)
    return [
        HashItem(*files.name_part(first, last), int(files.sizes[first:last].sum()))
        for first, last in runs(costs, _ITEM_BYTES)
    ]


def runs(costs: IntArray, most: int) -> Iterator[tuple[int, int]]:
    """Cut files into runs that cost at most `most`, or are one file that costs more.

    Args:
        costs: int64 [N].
        most: of a run.

    Yields:
        First file of each run, and the one after its last.
    """
    ends = np.cumsum(costs)
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield first, last
        first = last


def hash_files(item: HashItem) -> bytes:
    """Return the checksums of some files, end to end.

    Raises:
        InputError: a file cannot be read.
    """
    buffer = memoryview(bytearray(_READ_BYTES))
    return b"".join(_sha256(path, buffer) for path in split_names(item.names, item.name_ends))


def _sha256(path: bytes, buffer: memoryview) -> bytes:
    """Return SHA-256 of one file; `buffer` takes its bytes."""
    digest = hashlib.sha256()
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            while size := os.readv(descriptor, (buffer,)):
                digest.update(buffer[:size])
        finally:
            os.close(descriptor)
    except OSError as err:
        raise InputError(f"{os.fsdecode(path)}: cannot be read ({err.strerror}).") from err
    return digest.digest()


def with_digests(files: InputFiles, digests: Sequence[bytes]) -> InputFiles:
    """Return the files with the checksums of all items of `hash_items`, in order."""
    joined = np.frombuffer(b"".join(digests), np.uint8)
    return replace(files, digests=joined.reshape(-1, DIGEST_BYTES))


def hash_here(files: InputFiles, progress: Callable[[int], None]) -> InputFiles:
    """Return the files with their checksums, all taken in this process; `progress` gets sizes."""
    digests = []
    for item in hash_items(files):
        digests.append(hash_files(item))
        progress(item.bytes)
    return with_digests(files, digests)
