"""Blocks of a dataset folder by number, each with one `pread`, with the last few kept.

What the manifest says is believed only as far as it is checked: shard sizes when the dataset is
opened, the structure of each block when it is decoded. Checksums of whole shards are the business
of `bert-prep verify`.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path

from bert_ds.errors import DataError
from data_prep.errors import DataPrepError
from data_prep.format import Block, concatenate_blocks, decode_block
from data_prep.manifest import Manifest, load_manifest


def open_dataset(folder: Path) -> Manifest:
    """Load a manifest and check that its shards are there with the sizes that it states.

    Raises:
        DataError: no dataset there, or a shard is missing, shorter or longer than it should be.
    """
    try:
        manifest = load_manifest(folder)
    except DataPrepError as err:
        raise DataError(str(err)) from err
    for split in ("train", "valid"):
        for shard in manifest.shards(split):
            path = folder / shard.file
            if not path.is_file():
                raise DataError(f"shard {path} is missing; prepare the dataset again")
            size = path.stat().st_size
            if size != shard.bytes:
                raise DataError(
                    f"shard {path} has {size} bytes, its manifest says {shard.bytes}: it is "
                    "truncated or changed; prepare the dataset again or restore the shard"
                )
    return manifest


class BlockReader:
    """Random access to the blocks of one split.

    Blocks are numbered over all shards in manifest order. The last window that was asked for is
    kept decoded, since consecutive updates read the same one.
    """

    def __init__(self, folder: Path, manifest: Manifest, split: str, num_windows_kept: int = 2):
        """Args: dataset folder, its manifest, `train` or `valid`, decoded windows to keep."""
        self._folder = folder
        self._blocks = [
            (shard.file, entry) for shard in manifest.shards(split) for entry in shard.blocks
        ]
        self.block_counts = [entry.count for _, entry in self._blocks]
        self._files: dict[str, int] = {}
        self._num_windows_kept = num_windows_kept
        self._windows: OrderedDict[tuple[int, ...], Block] = OrderedDict()

    def window(self, blocks: tuple[int, ...]) -> Block:
        """The rows of several blocks, in the given order, as one block."""
        if blocks in self._windows:
            self._windows.move_to_end(blocks)
        else:
            self._windows[blocks] = concatenate_blocks([self.read(block) for block in blocks])
            while len(self._windows) > self._num_windows_kept:
                self._windows.popitem(last=False)
        return self._windows[blocks]

    def read(self, block: int) -> Block:
        """Read and decode one block.

        Raises:
            DataError: the shard cannot be read, or the bytes are not the block of the manifest.
        """
        file, entry = self._blocks[block]
        path = self._folder / file
        try:
            data = os.pread(self._descriptor(path), entry.size, entry.offset)
        except OSError as err:
            raise DataError(f"cannot read shard {path}: {err.strerror or err}") from err
        where = f"{path} at byte {entry.offset}"
        if len(data) != entry.size:
            raise DataError(f"{where}: {len(data)} bytes instead of {entry.size}; shard truncated")
        try:
            decoded = decode_block(data, where)
        except DataPrepError as err:
            raise DataError(str(err)) from err
        if len(decoded) != entry.count:
            raise DataError(f"{where}: {len(decoded)} rows, the manifest says {entry.count}")
        return decoded

    def close(self) -> None:
        """Close the shard files; the reader opens them again when it needs to."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def _descriptor(self, path: Path) -> int:
        key = str(path)
        if key not in self._files:
            self._files[key] = os.open(path, os.O_RDONLY)
        return self._files[key]
