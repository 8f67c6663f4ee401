"""Writing blocks as shards: uncompressed, byte-reproducible tar files whose members are blocks."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

from data_prep.contract.format import Block, block_checksum, encode_block
from data_prep.contract.manifest import BlockEntry, ShardEntry
from data_prep.running.files import atomic_file

_TAR_RECORD = 512
_END_OF_TAR = bytes(2 * _TAR_RECORD)


def write_shards(
    folder: Path, stem: str, blocks: Iterator[Block], blocks_per_shard: int
) -> list[ShardEntry]:
    """Write blocks as `stem-000.tar`, `stem-001.tar`, ...; does not wait for the disk.

    Args:
        folder: the dataset folder.
        stem: begin of the file names, such as "train-00003".
        blocks: the blocks, made as they are written.
        blocks_per_shard: blocks of each shard but the last.

    Returns:
        The entries of the shards.

    Raises:
        OutputError: a shard cannot be written.
    """
    entries: list[ShardEntry] = []
    for first in blocks:
        part = chain([first], islice(blocks, blocks_per_shard - 1))
        entries.append(_write_shard(folder / f"{stem}-{len(entries):03d}.tar", part))
    return entries


def _write_shard(path: Path, blocks: Iterable[Block]) -> ShardEntry:
    """Write one tar; return its entry for the manifest."""
    digest, entries, offset = hashlib.sha256(), [], 0
    key = path.stem.split("-", 1)[1]
    with atomic_file(path, is_durable=False) as file:
        for number, block in enumerate(blocks):
            payload = encode_block(block)
            member = _member(f"{key}-{number:05d}.npz", payload)
            file.write(member)
            digest.update(member)
            place = (offset + _TAR_RECORD, len(payload), len(block))
            entries.append(BlockEntry(*place, block_checksum(payload)))
            offset += len(member)
        file.write(_END_OF_TAR)
        digest.update(_END_OF_TAR)
    count = sum(entry.count for entry in entries)
    size = offset + len(_END_OF_TAR)
    return ShardEntry(path.name, size, digest.hexdigest(), count, tuple(entries))


def _member(name: str, payload: bytes) -> bytes:
    """Return one tar member: header, payload, padding; owner and time are zero."""
    info = tarfile.TarInfo(name)
    info.size = len(payload)
    return info.tobuf(tarfile.USTAR_FORMAT) + payload + bytes(-len(payload) % _TAR_RECORD)
