"""Files of a preparation: written whole or not at all, with errors that name a way to go on."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from data_prep.contract.errors import DataError, OutputError
from data_prep.contract.manifest import dumps
from data_prep.contract.storage import replaced_file, sync

WORK_NAME = "work"
"""The folder of an unfinished preparation in its output folder."""


@contextmanager
def atomic_file(path: Path, is_durable: bool = True) -> Iterator[BinaryIO]:
    """Return a binary file that appears under `path` only once it is whole.

    Args:
        path: the final name; the temporary file lies in the same folder.
        is_durable: whether name and content survive a power cut. False does not wait for the
            disk; a checksum kept elsewhere must then show whether they did. A kill leaves the file
            old or new either way.

    Raises:
        OutputError: the folder or file cannot be written, or the disk is full.
    """
    try:
        with replaced_file(path, is_durable) as file:
            yield file
    except OSError as err:
        raise output_error(path, err) from err


def make_durable(folder: Path, names: Iterable[str]) -> None:
    """Make files of a folder survive a power cut.

    Raises:
        OutputError: one of them cannot be written to disk.
    """
    for path in (*(folder / name for name in names), folder):
        try:
            sync(path)
        except OSError as err:
            raise output_error(path, err) from err


def write_json(path: Path, content: Any) -> None:
    """Write `content` as readable JSON, whole or not at all."""
    with atomic_file(path) as file:
        file.write(dumps(content).encode() + b"\n")


def write_work_json(path: Path, content: Any, is_durable: bool = True) -> None:
    """Write `content` as compact JSON, whole or not at all; much faster than `write_json`.

    Args:
        path: the file.
        content: plain JSON values.
        is_durable: see `atomic_file`.
    """
    with atomic_file(path, is_durable) as file:
        file.write(json.dumps(content, separators=(",", ":")).encode())


def read_work_json(path: Path) -> Any:
    """Read what `write_work_json` wrote.

    Raises:
        DataError: it is missing or damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise DataError(damaged_work(path, err)) from err


def damaged_work(path: Path, err: Exception) -> str:
    """Return the message where a file of a work folder cannot be used."""
    work = next((parent for parent in path.parents if parent.name == WORK_NAME), path.parent)
    return (
        f"{path}: cannot be read ({type(err).__name__}: {err}); the unfinished preparation is "
        f"damaged: remove {work} and run the command again."
    )


def make_folder(path: Path) -> None:
    """Make `path` and its parents.

    Raises:
        OutputError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise output_error(path, err) from err


def output_error(path: Path, err: OSError) -> OutputError:
    """Return the error for a user when writing `path` failed."""
    if err.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutputError(
            f"{path}: the disk is full ({free_mib(path)} MiB free in {path.parent}). Nothing "
            "finished is lost: make room and run the same command again, it resumes there."
        )
    return OutputError(
        f"{path}: cannot be written ({err.strerror or err}); choose another output, or correct "
        "the permissions of its folder."
    )


def free_mib(path: Path) -> int:
    """Return the MiB free for `path`, looked up at the nearest folder that exists."""
    existing = next(parent for parent in path.absolute().parents if parent.is_dir())
    return shutil.disk_usage(existing).free >> 20
