"""The input files as columns: names, sizes, times, weights and checksums.

A corpus of one document a file has millions of files, so there is no object for a file anywhere:
64 bytes and its name are kept of each, and that only while the work is planned. In the work folder
the columns are one file, of which a worker reads the rows of its task. That file is named after its
content and never changed; the plan names the valid one. It is read, not mapped: a folder on NFS
cannot be removed while a process of the same host maps a file in it.

Legend: N files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from data_prep.contract.errors import DataError
from data_prep.contract.format import IntArray
from data_prep.contract.manifest import InputEntry, InputSummary
from data_prep.running.files import atomic_file, damaged_work

DIGEST_BYTES = 32
MOST_NAMED = 100
"""Most entries of a summary; a shell may make any number of paths out of `corpus/*`."""
_NAME = "inputs-{}.bin"
_HEADER_BYTES = 16  # number of files, bytes of all names
_CHUNK_FILES = 1 << 16

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class InputFiles:
    """All input files, in order."""

    names: Bytes
    """The paths, end to end, as the file system has them; they begin as they were given."""
    name_ends: IntArray
    """int64 [N]: where in `names` each path ends."""
    sizes: IntArray
    """int64 [N], bytes."""
    changed_ns: IntArray
    """int64 [N]: time of the last change, before the file was read for the first time."""
    weights: npt.NDArray[np.float64]
    """float64 [N]: how often its documents are used, as a multiple of the duplicate factor."""
    digests: Bytes
    """uint8 [N, 32]: SHA-256 of each file."""

    def __len__(self) -> int:
        return len(self.sizes)

    def path(self, index: int) -> str:
        """Return the path of one file."""
        return os.fsdecode(*self.paths(index, index + 1))

    def paths(self, first: int, last: int) -> list[bytes]:
        """Return the paths of files [first, last), as the file system has them."""
        return split_names(*self.name_part(first, last))

    def name_part(self, first: int, last: int) -> tuple[bytes, list[int]]:
        """Return the paths of files [first, last) end to end, and where in them each ends."""
        start = int(self.name_ends[first - 1]) if first else 0
        ends = (self.name_ends[first:last] - start).tolist()
        return self.names[start : start + (ends or [0])[-1]].tobytes(), ends

    def changed(self, other: InputFiles) -> IntArray:
        """Return the numbers of the files whose content or weight differs in `other`.

        Args:
            other: as many files.
        """
        is_changed = (self.sizes != other.sizes) | (self.weights != other.weights)
        is_changed |= (self.digests != other.digests).any(axis=1)
        return np.flatnonzero(is_changed)


def split_names(names: bytes, ends: Sequence[int]) -> list[bytes]:
    """Return each of some names that lie end to end."""
    return [names[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def summary_of(files: InputFiles, given: Sequence[str], first: Sequence[int]) -> InputSummary:
    """Return the sum of the files that manifests and records hold.

    Args:
        files: all of them.
        given: the paths that were given.
        first: number of the first file of each of them, and behind the last the number of files.
    """
    entries = []
    for index, path in enumerate(given[:MOST_NAMED]):
        last = index + 1
        if last == MOST_NAMED and len(given) > MOST_NAMED:
            path, last = f"{len(given) - index} further paths", len(given)
        entries.append(_entry(files, path, first[index], first[last]))
    sha256 = _sha256(files, 0, len(files), has_weights=True)
    return InputSummary(len(files), int(files.sizes.sum()), sha256, tuple(entries))


def _entry(files: InputFiles, path: str, first: int, last: int) -> InputEntry:
    """Return the entry of files [first, last)."""
    weights = np.unique(files.weights[first:last])
    return InputEntry(
        path,
        last - first,
        int(files.sizes[first:last].sum()),
        _sha256(files, first, last, has_weights=False),
        float(weights[0]) if len(weights) == 1 else None,
    )


def _sha256(files: InputFiles, first: int, last: int, has_weights: bool) -> str:
    """Return a checksum over size, content and perhaps weight of files [first, last)."""
    digest = hashlib.sha256()
    for start in range(first, last, _CHUNK_FILES):
        rows = slice(start, min(start + _CHUNK_FILES, last))
        columns = [files.sizes[rows, None].astype("<i8").view(np.uint8), files.digests[rows]]
        if has_weights:
            columns.append(files.weights[rows, None].astype("<f8").view(np.uint8))
        digest.update(np.hstack(columns).tobytes())
    return digest.hexdigest()


def write_files(files: InputFiles, work: Path) -> str:
    """Write the columns into the work folder.

    Returns:
        The name of the file there.

    Raises:
        OutputError: it cannot be written.
    """
    digest = hashlib.sha256()
    for part in _parts(files):
        digest.update(part)
    name = _NAME.format(digest.hexdigest()[:16])
    if not (work / name).exists():
        with atomic_file(work / name) as file:
            for part in _parts(files):
                file.write(part)
    return name


def _parts(files: InputFiles) -> Iterator[memoryview]:
    """Yield the bytes of the file of the columns."""
    columns: list[tuple[npt.NDArray[Any], str]] = [
        (np.array([len(files), len(files.names)]), "<i8"),
        (files.name_ends, "<i8"),
        (files.sizes, "<i8"),
        (files.changed_ns, "<i8"),
        (files.weights, "<f8"),
        (files.digests, "u1"),
        (files.names, "u1"),
    ]
    for column, dtype in columns:
        yield np.ascontiguousarray(column, dtype).data.cast("B")


class StoredFiles:
    """The columns in a file that `write_files` has written.

    Args:
        path: the file.

    Raises:
        DataError: it cannot be read, or is damaged; from every method as well.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._count, self._name_bytes = 0, 0
        with self._opened() as file:
            header = self._read(file, 0, 2, "<i8").tolist()
            expected = _HEADER_BYTES + header[0] * (4 * 8 + DIGEST_BYTES) + header[1]
            if os.fstat(file.fileno()).st_size != expected:
                raise DataError(damaged_work(path, ValueError("it is cut off")))
        self._count, self._name_bytes = header

    def __len__(self) -> int:
        return self._count

    def sizes(self) -> IntArray:
        """Return the bytes of every file, int64 [N]."""
        with self._opened() as file:
            return self._column(file, 1, 0, self._count, "<i8")

    def part(self, first: int, last: int) -> InputFiles:
        """Return files [first, last)."""
        with self._opened() as file:
            before = self._column(file, 0, first - 1, first, "<i8") if first else np.zeros(1, int)
            start = int(before[0])
            ends = self._column(file, 0, first, last, "<i8") - start
            sizes, changed_ns = (self._column(file, n, first, last, "<i8") for n in (1, 2))
            weights = self._column(file, 3, first, last, "<f8")
            place = _HEADER_BYTES + 4 * 8 * self._count
            digests = self._read(
                file, place + first * DIGEST_BYTES, (last - first) * DIGEST_BYTES, "u1"
            )
            place += self._count * DIGEST_BYTES + start
            names = self._read(file, place, int(ends[-1]) if len(ends) else 0, "u1")
        return InputFiles(
            names, ends, sizes, changed_ns, weights, digests.reshape(-1, DIGEST_BYTES)
        )

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        """Open the file."""
        try:
            with self._path.open("rb") as file:
                yield file
        except OSError as err:
            raise DataError(damaged_work(self._path, err)) from err

    def _column(
        self, file: BinaryIO, number: int, first: int, last: int, dtype: str
    ) -> npt.NDArray[Any]:
        """Return rows [first, last) of one of the columns of 8 bytes."""
        return self._read(
            file, _HEADER_BYTES + 8 * (number * self._count + first), last - first, dtype
        )

    def _read(self, file: BinaryIO, place: int, count: int, dtype: str) -> npt.NDArray[Any]:
        """Return `count` elements from byte `place` on."""
        file.seek(place)
        values = np.fromfile(file, dtype, count)
        if len(values) != count:
            raise DataError(damaged_work(self._path, ValueError("it is cut off")))
        return values


def remove_other_files(work: Path, name: str) -> None:
    """Remove columns of the work folder other than those of the plan."""
    for path in work.glob(_NAME.format("*")):
        if path.name != name:
            path.unlink(missing_ok=True)


def is_of_files(name: str) -> bool:
    """Return whether a file of a work folder may hold columns, by its name."""
    prefix, suffix = _NAME.split("{}")
    return name.startswith(prefix) and name.endswith(suffix)
