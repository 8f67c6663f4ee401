"""Reading a dataset folder block by block, for the commands that look into one."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from data_prep.contract.errors import DataError
from data_prep.contract.format import Block, block_checksum, decode_block
from data_prep.contract.manifest import BlockEntry, Manifest, ShardEntry


class PlacedBlock(NamedTuple):
    """A block and where it lies."""

    where: str
    """Shard and block, for people."""
    block: Block
    """The block."""


def read_shard(folder: Path, shard: ShardEntry) -> Iterator[PlacedBlock]:
    """Yield the blocks of one shard, by its block table.

    Raises:
        DataError: the shard is missing or does not match the table; the message names it.
    """
    path = folder / shard.file
    try:
        with path.open("rb") as file:
            for number, entry in enumerate(shard.blocks):
                where = f"{path} block {number}"
                yield PlacedBlock(where, _read_block(file, entry, where))
    except OSError as err:
        raise DataError(
            f"{path}: cannot be read ({err.strerror}); prepare the data again."
        ) from err


def _read_block(file: BinaryIO, entry: BlockEntry, where: str) -> Block:
    """Return one block, once its tar header and row count agree with the table."""
    file.seek(entry.offset - tarfile.BLOCKSIZE)
    header = file.read(tarfile.BLOCKSIZE)
    try:
        size = tarfile.TarInfo.frombuf(header, "ascii", "strict").size
    except tarfile.HeaderError as err:
        raise DataError(f"{where}: no tar member at offset {entry.offset} ({err}).") from err
    if size != entry.size:
        raise DataError(f"{where}: the tar member has {size} bytes, the manifest {entry.size}.")
    data = file.read(entry.size)
    block = decode_block(data, where)
    if block_checksum(data) != entry.checksum:
        raise DataError(f"{where}: another block than the manifest's; prepare the data again.")
    if len(block) != entry.count:
        raise DataError(f"{where}: {len(block)} rows, the manifest says {entry.count}.")
    return block


def read_split(folder: Path, manifest: Manifest, split: str) -> Iterator[PlacedBlock]:
    """Yield all blocks of a split, in order.

    Args:
        folder: the dataset folder.
        manifest: its manifest.
        split: "train" or "valid".

    Raises:
        DataError: a shard is missing or does not match the table.
    """
    for shard in manifest.shards(split):
        yield from read_shard(folder, shard)
