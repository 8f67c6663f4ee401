"""Reads the blocks of a dataset by number, each with one `pread`, and keeps the last few windows.

The manifest is checked against the files: which shards they are when the dataset is opened, which
block it is and all its bytes when a block is read. Checksums of whole shards are left to
`bert-prep verify`.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path

from bert_ds.data.cache import ShardCache
from bert_ds.data.identity import check_shards, is_shard, wrong_shard
from bert_ds.data.row_copy import Window
from bert_ds.errors import DataError
from data_prep.contract.errors import DataPrepError
from data_prep.contract.format import Block, block_checksum, concatenate_blocks, decode_block
from data_prep.contract.manifest import BlockEntry, Manifest, ShardEntry, load_manifest

_NUM_WINDOWS_KEPT = 2
_NUM_FILES_KEPT = 64  # open at a time; a process may usually have 1,024


def open_dataset(folder: Path, part: int = 0, num_parts: int = 1) -> Manifest:
    """Load a manifest and check that its shards exist, and that each is the one it describes.

    Args:
        folder: the dataset folder.
        part: number of this process among those that share the check, from 0.
        num_parts: number of processes that share the check.

    Raises:
        DataError: the folder holds no dataset, or a shard is missing, of another size, or another
            shard.
    """
    try:
        manifest = load_manifest(folder)
    except DataPrepError as err:
        raise DataError(str(err)) from err
    check_shards(folder, manifest, part, num_parts)
    return manifest


class BlockReader:
    """Random access to the blocks of one split.

    Blocks are numbered over all shards in manifest order. The last windows are kept decoded, since
    consecutive updates read the same one.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, split: str, cache: ShardCache | None = None
    ) -> None:
        """Open no shard yet.

        Args:
            folder: the dataset folder.
            manifest: the dataset's manifest.
            split: `train` or `valid`.
            cache: copies of its shards; None to read the shards themselves.
        """
        self._folder = folder
        self._manifest = manifest
        self._cache = cache
        self._blocks = [
            (shard, entry) for shard in manifest.shards(split) for entry in shard.blocks
        ]
        self.block_counts = [entry.count for _, entry in self._blocks]
        self._files: OrderedDict[str, tuple[Path, int]] = OrderedDict()
        self._windows: OrderedDict[tuple[int, ...], Window] = OrderedDict()

    def window(self, blocks: tuple[int, ...]) -> Window:
        """Return the rows of several blocks, in the given order."""
        if blocks in self._windows:
            self._windows.move_to_end(blocks)
        else:
            rows = concatenate_blocks([self.read(block) for block in blocks])
            self._windows[blocks] = Window(rows)
            while len(self._windows) > _NUM_WINDOWS_KEPT:
                self._windows.popitem(last=False)
        return self._windows[blocks]

    def read(self, block: int) -> Block:
        """Read and decode one block.

        Raises:
            DataError: the shard cannot be read, or the bytes are not the block of the manifest.
        """
        shard, entry = self._blocks[block]
        path = self._folder / shard.file
        try:
            path, descriptor = self._opened(shard)
            data = os.pread(descriptor, entry.size, entry.offset)
        except OSError as err:
            raise DataError(f"cannot read shard {path}: {err.strerror or err}") from err
        where = f"{path} at byte {entry.offset}"
        try:
            return _decoded(data, entry, where)
        except DataPrepError as err:
            if os.fstat(descriptor).st_size == shard.bytes and not is_shard(path, shard):
                raise DataError(wrong_shard(path, shard, self._manifest)) from err
            raise DataError(str(err)) from err

    def close(self) -> None:
        """Close the shard files; a later read opens them again."""
        while self._files:
            self._close_oldest()

    def _opened(self, shard: ShardEntry) -> tuple[Path, int]:
        """Return the path that a shard is read from, and its file descriptor."""
        if shard.file in self._files:
            self._files.move_to_end(shard.file)
        else:
            path = self._cache.path_of(shard) if self._cache else self._folder / shard.file
            self._files[shard.file] = path, os.open(path, os.O_RDONLY)
            if len(self._files) > _NUM_FILES_KEPT:
                self._close_oldest()
        return self._files[shard.file]

    def _close_oldest(self) -> None:
        _, (_, descriptor) = self._files.popitem(last=False)
        os.close(descriptor)


def _decoded(data: bytes, entry: BlockEntry, where: str) -> Block:
    """Decode a block and check that it is the one that the manifest describes.

    Raises:
        DataPrepError: it is not.
    """
    if len(data) != entry.size:
        raise DataPrepError(f"{where}: {len(data)} bytes instead of {entry.size}; shard truncated")
    block = decode_block(data, where)
    if block_checksum(data) != entry.checksum:
        raise DataPrepError(
            f"{where}: a whole block, but not the one of the manifest, whose checksum is "
            f"{entry.checksum:08x}; restore the shard or prepare the dataset again"
        )
    if len(block) != entry.count:
        raise DataPrepError(f"{where}: {len(block)} rows, the manifest says {entry.count}")
    return block
