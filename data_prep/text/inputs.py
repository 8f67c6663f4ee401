"""What is an input file: how documents lie in it, by its name, and finding all of them.

A folder is read with all folders in it, also those that links lead to. A file is read once for each
path that was given, whatever links lead to it; given by two paths it is refused, since it would not
be clear which of their weights it has. Names that begin with a dot are left out.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from data_prep.contract.errors import InputError, UsageError
from data_prep.contract.format import IntArray
from data_prep.text.input_files import DIGEST_BYTES, InputFiles

logger = logging.getLogger(__name__)

TEXT_SUFFIXES = (".txt", ".jsonl")
COMPRESSION_SUFFIXES = ("", ".gz", ".zst")
_ACCEPTED = tuple(text + packed for text in TEXT_SUFFIXES for packed in COMPRESSION_SUFFIXES)
_ACCEPTED_BYTES = tuple(suffix.encode() for suffix in _ACCEPTED)
_NAMED_NOT_READ = 3
_COUNTED_SUFFIXES = 20
_OTHER_SUFFIXES = "with other suffixes"
_LINK_ERRORS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@dataclass(frozen=True)
class TextFormat:
    """How documents lie in the input files."""

    one_document_per_file: bool = False
    """A `.txt` file is one document; otherwise documents are separated by blank lines."""
    json_field: str = "text"
    """The field of a `.jsonl` line that holds the document."""


def is_accepted(path: str) -> bool:
    """Return whether the suffix is that of a text format."""
    return path.lower().endswith(_ACCEPTED)


def is_gzip(path: str) -> bool:
    """Return whether the file is compressed by gzip."""
    return path[-3:].lower() == ".gz"


def is_zstandard(path: str) -> bool:
    """Return whether the file is compressed by zstandard."""
    return path[-4:].lower() == ".zst"


def is_compressed(path: str) -> bool:
    """Return whether documents can only be reached by reading from the start."""
    return path[-4:].lower().endswith((".gz", ".zst"))


def is_json_lines(path: str) -> bool:
    """Return whether a line is a document."""
    return path[-10:].lower().endswith((".jsonl", ".jsonl.gz", ".jsonl.zst"))


class FoundInputs(NamedTuple):
    """The input files."""

    files: InputFiles
    """In the order given, folders in sorted order; without checksums yet."""
    first: list[int]
    """Number of the first file of each path that was given, and last the number of files."""


def find_inputs(given: Sequence[str], apart: Sequence[Path] = ()) -> FoundInputs:
    """Find the input files, and warn of files in folders that are not read.

    Args:
        given: files and folders.
        apart: files and folders of ours that must not lie among the inputs.

    Raises:
        UsageError: a path does not exist, has an unknown suffix, a file is given twice, or a file
            of ours lies among the inputs.
        InputError: a folder holds no file of a known suffix, or something that cannot be read.
    """
    if "" in given:
        raise UsageError("--input: an empty name; give files or folders.")
    finder = _Finder(apart)
    for path in given:
        finder.find(path)
    return finder.found()


class _NotRead:
    """Files whose names do not end as those of text: their number, suffixes and first names."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._counts: Counter[str] = Counter()

    def add(self, path: bytes) -> None:
        """Count one file."""
        name = os.fsdecode(path)
        if len(self._names) < _NAMED_NOT_READ or name < self._names[-1]:
            self._names = sorted([*self._names, name])[:_NAMED_NOT_READ]
        suffixes = Path(name).suffixes[-2:]
        is_packed = bool(suffixes) and suffixes[-1] in COMPRESSION_SUFFIXES
        suffix = "".join(suffixes if is_packed else suffixes[-1:]) or "without suffix"
        is_known = suffix in self._counts or len(self._counts) < _COUNTED_SUFFIXES
        self._counts[suffix if is_known else _OTHER_SUFFIXES] += 1

    def __str__(self) -> str:
        """Return how many there are of each suffix, and the first names."""
        counts = ", ".join(f"{count} {suffix}" for suffix, count in self._counts.most_common())
        more = ", ..." if self._counts.total() > len(self._names) else ""
        return f"{counts} ({', '.join(self._names)}{more})"

    def __len__(self) -> int:
        return self._counts.total()


class _Finder:
    """A walk through what was given, which gathers columns; see `find_inputs`."""

    def __init__(self, apart: Sequence[Path]) -> None:
        self._apart = [path.resolve() for path in apart]
        self._ours = {_place(os.stat(path)) for path in self._apart if path.exists()}
        self._first = [0]
        self._names = bytearray()
        self._name_ends, self._sizes, self._changed_ns = array("q"), array("q"), array("q")
        self._devices, self._inodes = array("Q"), array("Q")
        self._is_linked = bytearray()  # whether a link led there, below the path given
        self._folders: set[tuple[int, int]] = set()  # of the path at hand: device and inode
        self._num_links = 0
        self._not_read = _NotRead()

    def find(self, path: str) -> None:
        """Add what lies at one of the paths given."""
        self._refuse_ours(path)
        if os.path.isdir(path):
            self._find_below(path)
        elif not os.path.exists(path):
            raise UsageError(f"--input {path}: no such file or folder.")
        elif not is_accepted(path):
            raise UsageError(
                f"--input {path}: the suffix names the format and must be one of "
                f"{' '.join(_ACCEPTED)}; rename the file."
            )
        else:
            self._add(os.fsencode(path), False)
        self._first.append(len(self._sizes))

    def _find_below(self, folder: str) -> None:
        """Add all files below a folder, in the order of their paths."""
        before = len(self._not_read)
        self._folders.clear()
        self._enter(os.fsencode(folder))
        # For each folder on the way down: what is left of it, and whether a link led there.
        stack = [(self._listed(os.path.join(os.fsencode(folder), b"")), False)]
        while stack:
            entries, is_linked = stack[-1]
            path, is_link = next(entries, (b"", False))
            if not path:
                stack.pop()
            elif not path.endswith(b"/"):
                self._add(path, is_linked or is_link)
            elif self._enter(path, is_link):
                stack.append((self._listed(path), is_linked or is_link))
        if self._first[-1] == len(self._sizes):
            others = f" (in it: {self._not_read})" if len(self._not_read) > before else ""
            raise InputError(
                f"--input {folder}: no file in it ends in one of {' '.join(_ACCEPTED)}{others}; "
                "give another folder or rename the files."
            )

    def _enter(self, folder: bytes, is_link: bool = False) -> bool:
        """Return whether a folder is to be read: a folder is read once for a path given."""
        if is_link:
            self._num_links += 1
            self._refuse_ours(_shown(folder))
        place = _place(self._status(folder))
        is_new = place not in self._folders
        self._folders.add(place)
        return is_new

    def _listed(self, folder: bytes) -> Iterator[tuple[bytes, bool]]:
        """Return the paths in a folder in the order in which whole paths are sorted.

        Args:
            folder: its path, with a slash at the end.

        Returns:
            Paths of text files and, with a slash at the end, of folders; each with whether it is a
            link.
        """
        names: list[bytes] = []
        links: set[bytes] = set()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = entry.name
                    if name.startswith(b"."):
                        continue
                    if entry.is_symlink():
                        is_folder = _is_folder_behind(entry.path)
                        name += b"/" * is_folder
                        links.add(name)
                    else:
                        is_folder = entry.is_dir(follow_symlinks=False)
                        name += b"/" * is_folder
                    if is_folder or name.lower().endswith(_ACCEPTED_BYTES):
                        names.append(name)
                    else:
                        self._not_read.add(entry.path)
        except OSError as err:
            raise InputError(
                f"--input {_shown(folder)}: cannot be listed ({err.strerror})."
            ) from err
        names.sort()
        return ((folder + name, name in links) for name in names)

    def _status(self, path: bytes) -> os.stat_result:
        """Return the status of what a path leads to."""
        try:
            return os.stat(path)
        except OSError as err:
            raise InputError(f"--input {_shown(path)}: cannot be read ({err.strerror}).") from err

    def _add(self, path: bytes, is_linked: bool) -> None:
        """Add one file."""
        status = self._status(path)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(
                f"--input {os.fsdecode(path)}: not a regular file; text is read more than once."
            )
        if is_linked and _place(status) in self._ours:
            self._refuse_ours(os.fsdecode(path))
        self._names += path
        self._name_ends.append(len(self._names))
        self._sizes.append(status.st_size)
        self._changed_ns.append(status.st_mtime_ns)
        self._devices.append(status.st_dev)
        self._inodes.append(status.st_ino)
        self._is_linked.append(is_linked)

    def _refuse_ours(self, path: str) -> None:
        """Raise UsageError where a file of ours would be read as text, now or in the next run."""
        resolved = Path(os.path.realpath(path))
        for ours in self._apart:
            if resolved == ours or resolved in ours.parents:
                raise UsageError(
                    f"--input {path}: {ours} is the same or lies in it and would be read as text; "
                    "keep inputs in a folder of their own."
                )

    def found(self) -> FoundInputs:
        """Return what was found, each file once, and log what else there was."""
        files = InputFiles(
            np.frombuffer(self._names, np.uint8),
            np.frombuffer(self._name_ends, np.int64),
            np.frombuffer(self._sizes, np.int64),
            np.frombuffer(self._changed_ns, np.int64),
            np.ones(len(self._sizes)),
            np.zeros((len(self._sizes), DIGEST_BYTES), np.uint8),
        )
        repeated = self._repeated(files)
        if self._num_links:
            logger.info("--input: links to folders are followed: %d", self._num_links)
        if len(repeated):
            logger.info("--input: files that links lead to a second time: %d", len(repeated))
        if len(self._not_read):
            logger.warning(
                "--input: %d files are not read, their names end in none of %s: %s; rename them if "
                "they are text",
                len(self._not_read),
                " ".join(_ACCEPTED),
                self._not_read,
            )
        first = np.array(self._first) - np.searchsorted(repeated, self._first)
        return FoundInputs(_without(files, repeated), first.tolist())

    def _repeated(self, files: InputFiles) -> IntArray:
        """Return the numbers of files that were found before under another name, increasing.

        Names that are no links are different files to us, though the system may keep them as one
        (hard links).

        Raises:
            UsageError: a file lies in two of the paths that were given.
        """
        devices = np.frombuffer(self._devices, np.uint64)
        inodes = np.frombuffer(self._inodes, np.uint64)
        is_linked = np.frombuffer(self._is_linked, np.uint8)
        order = np.lexsort((inodes, devices))
        is_first = np.ones(len(order) + 1, np.bool_)
        devices, inodes = devices[order], inodes[order]
        is_first[1:-1] = (devices[1:] != devices[:-1]) | (inodes[1:] != inodes[:-1])
        starts = np.flatnonzero(is_first)
        repeated = []
        for start in np.flatnonzero(np.diff(starts) > 1):
            group = order[starts[start] : starts[start + 1]]
            origins = np.searchsorted(self._first, group, side="right")
            if not is_linked[group].any() and len(np.unique(origins)) == 1:
                continue
            seen: dict[str, tuple[int, int]] = {}
            for index, origin in zip(group.tolist(), origins.tolist(), strict=True):
                real = os.path.realpath(files.path(index))
                other, other_origin = seen.setdefault(real, (index, origin))
                if other_origin != origin:
                    raise UsageError(
                        f"--input: {files.path(index)} is the same file as {files.path(other)}; "
                        "give it once."
                    )
                if other != index:
                    repeated.append(index)
        return np.sort(np.array(repeated, np.int64))


def _shown(path: bytes) -> str:
    """Return a path as people write it."""
    return os.fsdecode(path.rstrip(b"/") or path)


def _place(status: os.stat_result) -> tuple[int, int]:
    """Return device and inode, which all names of one file or folder share."""
    return status.st_dev, status.st_ino


def _is_folder_behind(link: bytes) -> bool:
    """Return whether a link leads to a folder; raise InputError where it leads to nothing.

    Such a link is refused whatever its name is: the folder of text that it led to may be missing.
    """
    try:
        os.stat(link)
    except OSError as err:
        if err.errno in _LINK_ERRORS:
            raise InputError(
                f"--input {os.fsdecode(link)}: a link to nothing; fix or remove it."
            ) from err
        raise InputError(f"--input {os.fsdecode(link)}: cannot be read ({err.strerror}).") from err
    return os.path.isdir(link)


def _without(files: InputFiles, dropped: IntArray) -> InputFiles:
    """Return the files without some of them."""
    if not len(dropped):
        return files
    is_kept: npt.NDArray[np.bool_] = np.ones(len(files), np.bool_)
    is_kept[dropped] = False
    sizes = np.diff(files.name_ends, prepend=0)
    return replace(
        files,
        names=files.names[np.repeat(is_kept, sizes)],
        name_ends=np.cumsum(sizes[is_kept]),
        sizes=files.sizes[is_kept],
        changed_ns=files.changed_ns[is_kept],
        weights=files.weights[is_kept],
        digests=files.digests[is_kept],
    )
