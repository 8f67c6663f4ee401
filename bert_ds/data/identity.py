"""Checks that a file is the shard that a manifest describes, cheaply enough for every shard.

A shard in another one's place may have the right size, and all its blocks are whole, so neither
shows the mistake. The manifest holds a checksum of each block's field checksums, and a block ends
with its field checksums: one read of a kibibyte, at the end of the first block, distinguishes a
shard from any other shard of this or another dataset. The other blocks are checked as they are read
(`bert_ds.data.reader`); `bert-prep verify` reads every shard completely.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bert_ds.errors import DataError
from data_prep.contract.format import ENDING_BYTES, checksum_of_ending
from data_prep.contract.manifest import SPLITS, Manifest, ShardEntry

_THREADS = 16  # a parallel file system answers many requests at a time, each after milliseconds


def check_shards(folder: Path, manifest: Manifest, part: int = 0, num_parts: int = 1) -> None:
    """Check that shards exist, have the right size and are those of the manifest.

    Args:
        folder: the dataset folder.
        manifest: the dataset's manifest.
        part: which shards to check: those whose number is this modulo `num_parts`.
        num_parts: number of processes that share the work.

    Raises:
        DataError: a shard is wrong; the message names the first one, and what the file is.
    """
    shards = _all_shards(manifest)[part::num_parts]

    def fault_of(shard: ShardEntry) -> str | None:
        return shard_fault(folder / shard.file, shard, manifest)

    with ThreadPoolExecutor(_THREADS) as pool:
        for fault in pool.map(fault_of, shards):
            if fault is not None:
                raise DataError(fault)


def is_shard(path: Path, shard: ShardEntry) -> bool:
    """Return whether a file is this shard, by its size and the end of its first block."""
    try:
        return _look(path, shard) == (shard.bytes, shard.blocks[0].checksum)
    except OSError:
        return False


def shard_fault(path: Path, shard: ShardEntry, manifest: Manifest) -> str | None:
    """Return what is wrong with a file that should be this shard, and how to fix it, or None.

    Args:
        path: the file.
        shard: the shard that it should be.
        manifest: the dataset's manifest, to recognise another shard of it.
    """
    try:
        size, checksum = _look(path, shard)
    except FileNotFoundError:
        return f"shard {path} is missing; prepare the dataset again"
    except OSError as err:
        return f"cannot read shard {path}: {err.strerror or err}"
    if size != shard.bytes:
        return (
            f"shard {path} has {size} bytes, its manifest says {shard.bytes}: it is truncated or "
            "changed; prepare the dataset again or restore the shard"
        )
    if checksum != shard.blocks[0].checksum:
        return wrong_shard(path, shard, manifest)
    return None


def wrong_shard(path: Path, shard: ShardEntry, manifest: Manifest) -> str:
    """Return the message about a file that holds other blocks than this shard's.

    Args:
        path: the file.
        shard: the shard that it should be.
        manifest: the dataset's manifest, to recognise another shard of it.
    """
    other = _shard_in(path, shard, manifest)
    if other is not None:
        return (
            f"shard {path} holds {other.file} of the same dataset: it was renamed, or copied to "
            "another name. Give every shard its own name again, or prepare the dataset again; "
            "`bert-prep verify` checks the whole dataset"
        )
    return (
        f"shard {path} does not hold the blocks of its manifest, nor is it another shard of this "
        "dataset: it is of another one, or was changed. Restore it or prepare the dataset again; "
        "`bert-prep verify` checks the whole dataset"
    )


def _all_shards(manifest: Manifest) -> Sequence[ShardEntry]:
    return [shard for split in SPLITS for shard in manifest.shards(split)]


def _look(path: Path, shard: ShardEntry) -> tuple[int, int | None]:
    """Return a file's size, and the checksum of its bytes where the first block should be."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.fstat(descriptor).st_size, _first_checksum(descriptor, shard)
    finally:
        os.close(descriptor)


def _first_checksum(descriptor: int, shard: ShardEntry) -> int | None:
    """Return the checksum of a shard's first block; None if those bytes are no block."""
    first = shard.blocks[0]
    size = min(ENDING_BYTES, first.size)
    try:
        return checksum_of_ending(os.pread(descriptor, size, first.offset + first.size - size))
    except ValueError:
        return None


def _shard_in(path: Path, expected: ShardEntry, manifest: Manifest) -> ShardEntry | None:
    """Return the other shard of the dataset that a file holds; None if it holds none."""
    for shard in _all_shards(manifest):
        if shard.file != expected.file and is_shard(path, shard):
            return shard
    return None
