"""Copies of shards on a local disk, for datasets that lie on a slow file system.

A shard is copied whole when a block of it is read for the first time. The copy is written to
`<cache>/<fingerprint>/.<shard>.partial`, which is locked meanwhile, and renamed when complete.
Processes of one host may share a cache: the second one waits for the copy and uses it. A process
that is killed leaves a partial file without a lock, which the next one removes. Nothing else is
removed: folders of datasets that are no longer used can be deleted by hand. A copy that is not the
shard of its name is made again.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from pathlib import Path
from typing import BinaryIO

from bert_ds.data.identity import is_shard, shard_fault
from bert_ds.errors import DataError
from data_prep.contract.manifest import Manifest, ShardEntry

log = logging.getLogger(__name__)

_COPY_BYTES = 1 << 20  # copied at a time


class ShardCache:
    """Copies of the shards of one dataset."""

    def __init__(self, cache_dir: Path, folder: Path, manifest: Manifest) -> None:
        """Make the cache's folder, and remove partial copies of killed processes.

        Args:
            cache_dir: folder for the copies of all datasets.
            folder: the dataset's folder.
            manifest: the dataset's manifest.
        """
        self._original_folder = folder
        self._manifest = manifest
        self._folder = cache_dir / manifest.fingerprint
        self._is_given_up = False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for partial in self._folder.glob(".*.partial"):
                _remove_if_left_behind(partial)
        except OSError as err:
            self._give_up(err)

    def path_of(self, shard: ShardEntry) -> Path:
        """Return where to read a shard: its copy, made if there is none, or the shard itself.

        The shard itself is read if it cannot be copied, for example because the disk is full; that
        is logged once, and no further copies are tried.

        Raises:
            DataError: the shard to copy is not the one that the manifest describes.
        """
        copy = self._folder / shard.file
        if is_shard(copy, shard):
            return copy
        if copy.exists():
            log.warning("data.cache_dir: %s is not the shard of this name; copied again", copy)
        original = self._original_folder / shard.file
        if self._is_given_up:
            return original
        try:
            self._copy_once(original, copy, shard)
        except OSError as err:
            self._give_up(err)
            return original
        return copy

    def _copy_once(self, original: Path, copy: Path, shard: ShardEntry) -> None:
        """Copy a file, or wait until another process has copied it.

        Two races are hard here. A process that waits for the lock may get it on a file that the
        other one has renamed or removed since, so it compares the open file with the one at the
        path and starts over. And the copy appears under its own name only when it is complete, so
        that no reader needs the lock.
        """
        partial = copy.with_name(f".{copy.name}.partial")
        while not is_shard(copy, shard):
            with partial.open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if not _is_at(file, partial):
                    continue  # another process has finished or given up while we waited
                try:
                    if not is_shard(copy, shard):
                        _fill(file, original)
                        if not is_shard(partial, shard):
                            fault = shard_fault(original, shard, self._manifest)
                            raise DataError(fault or f"shard {original} changed while it was read")
                        partial.replace(copy)
                finally:
                    partial.unlink(missing_ok=True)

    def _give_up(self, err: OSError) -> None:
        self._is_given_up = True
        log.warning(
            "data.cache_dir: cannot copy shards to %s (%s); shards that are not there are read "
            "from %s", self._folder, err.strerror or err, self._original_folder,
        )  # fmt: skip


def _fill(file: BinaryIO, original: Path) -> None:
    file.truncate(0)
    with original.open("rb") as source:
        shutil.copyfileobj(source, file, _COPY_BYTES)
    file.flush()
    os.fsync(file.fileno())


def _remove_if_left_behind(partial: Path) -> None:
    """Remove a partial copy that no process is writing."""
    try:
        with partial.open("r+b") as file:  # does not create the file
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(file, partial):
                partial.unlink()
    except (BlockingIOError, FileNotFoundError):
        return  # another process is copying, or has finished


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Return whether the open file is what lies at `path`."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
