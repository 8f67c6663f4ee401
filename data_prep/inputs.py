"""Finding the input files: what was given, which format each has, and their checksums."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from data_prep.errors import InputError, UsageError
from data_prep.files import sha256_file
from data_prep.manifest import InputEntry

TEXT_SUFFIXES = (".txt", ".jsonl")
COMPRESSION_SUFFIXES = ("", ".gz", ".zst")
_ACCEPTED = tuple(text + packed for text in TEXT_SUFFIXES for packed in COMPRESSION_SUFFIXES)


@dataclass(frozen=True)
class TextFormat:
    """How documents lie in the input files."""

    one_document_per_file: bool = False
    """A `.txt` file is one document; otherwise documents are separated by blank lines."""
    json_field: str = "text"
    """The field of a `.jsonl` line that holds the document."""


class FoundInputs(NamedTuple):
    """The input files."""

    paths: list[str]
    """Paths that begin as they were given."""
    given: list[int]
    """For each, which of the files and folders given it is or lies in."""


def find_inputs(given: Sequence[str], apart: Sequence[Path] = ()) -> FoundInputs:
    """The input files, in the order given; folders are recursed in sorted order.

    Args:
        given: files and folders.
        apart: files and folders of ours that must not lie among the inputs.

    Raises:
        UsageError: a path does not exist, has an unknown suffix, a file comes twice, or a file of
            ours lies among the inputs.
        InputError: a folder holds no file of a known suffix.
    """
    if "" in given:
        raise UsageError("--input: an empty name; give files or folders.")
    _refuse_ours(given, apart)
    found: list[str] = []
    origins: list[int] = []
    for index, path in enumerate(given):
        if os.path.isdir(path):
            found.extend(_files_below(path))
        elif not os.path.exists(path):
            raise UsageError(f"--input {path}: no such file or folder.")
        elif not path.endswith(_ACCEPTED):
            raise UsageError(
                f"--input {path}: the format is told by the suffix, which must be one of "
                f"{' '.join(_ACCEPTED)}; rename the file."
            )
        else:
            _refuse_special(path)
            found.append(path)
        origins += [index] * (len(found) - len(origins))
    _refuse_repeated(found)
    return FoundInputs(found, origins)


def _files_below(folder: str) -> list[str]:
    """All input files below `folder`, hidden ones left out."""
    found: list[str] = []

    def refuse(err: OSError) -> None:
        raise InputError(f"--input {err.filename}: cannot be listed ({err.strerror}).") from err

    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        visible = [name for name in names if not name.startswith(".")]
        found += [os.path.join(parent, name) for name in visible if name.endswith(_ACCEPTED)]
    if not found:
        raise InputError(
            f"--input {folder}: no file in it ends in one of {' '.join(_ACCEPTED)}; "
            "give another folder or rename the files."
        )
    for path in found:
        _refuse_special(path)
    return sorted(found)


def _refuse_special(path: str) -> None:
    """InputError for what is no file that can be read more than once."""
    if not os.path.exists(path):
        raise InputError(f"--input {path}: a link to nothing; mend or remove it.")
    if not os.path.isfile(path):
        raise InputError(f"--input {path}: not a regular file; text is read more than once.")


def _refuse_ours(given: Sequence[str], apart: Sequence[Path]) -> None:
    """UsageError where one of our files would be read as text, now or in the next run."""
    for ours in apart:
        for path in given:
            resolved = Path(os.path.realpath(path))  # a loop of links is left to be told later
            if resolved == ours.resolve() or resolved in ours.resolve().parents:
                raise UsageError(
                    f"--input {path}: {ours} is the same or lies in it and would be read as text; "
                    "keep inputs in a folder of their own."
                )


def _refuse_repeated(paths: Sequence[str]) -> None:
    """UsageError where one file is reached twice."""
    seen: dict[str, str] = {}
    for path in paths:
        other = seen.setdefault(os.path.realpath(path), path)
        if other is not path:
            raise UsageError(f"--input: {path} is the same file as {other}; give it once.")


def hash_input(path: str) -> InputEntry:
    """Size and checksum of one input file.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        return InputEntry(path, os.stat(path).st_size, sha256_file(Path(path)))
    except OSError as err:
        raise InputError(f"{path}: cannot be read ({err.strerror}).") from err


def hash_inputs(
    paths: Sequence[str], progress: Callable[[int], None] = lambda size: None
) -> list[InputEntry]:
    """`hash_input` of every path; `progress` hears the bytes of each."""
    entries = []
    for path in paths:
        entries.append(hash_input(path))
        progress(entries[-1].bytes)
    return entries


def is_compressed(path: str) -> bool:
    """Whether documents can only be reached by reading from the start."""
    return path.endswith((".gz", ".zst"))


def is_json_lines(path: str) -> bool:
    """Whether a line is a document."""
    return ".jsonl" in Path(path).name[-len(".jsonl.zst") :]
