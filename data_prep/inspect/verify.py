"""`bert-prep verify`: does a dataset folder agree with its manifest and the data contract?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from data_prep.contract.errors import DataError
from data_prep.contract.format import Block, IntArray, count_dtype, position_dtype, token_dtype
from data_prep.contract.manifest import (
    SPLITS,
    VOCABULARY_NAME,
    Manifest,
    ShardEntry,
    load_manifest,
)
from data_prep.contract.storage import sha256_file
from data_prep.contract.wordpiece import load_vocabulary
from data_prep.inspect.dataset import read_shard
from data_prep.stages.totals import TotalsSummer


def verify_folder(folder: Path, progress: Callable[[int], None] = lambda size: None) -> Manifest:
    """Check every shard of a dataset folder.

    Args:
        folder: the dataset folder.
        progress: called with the bytes of each shard that was checked.

    Returns:
        The manifest.

    Raises:
        DataError: what is wrong, a line each; shards are named.
    """
    manifest = load_manifest(folder)
    faults = list(_folder_faults(folder, manifest))
    checker = BlockChecker(folder, manifest) if not faults else None
    for split in SPLITS:
        unknown_id = checker.unknown_id if checker else 0
        summer = TotalsSummer(manifest.sequence_length, manifest.vocabulary.size, unknown_id)
        split_faults = []
        for shard in manifest.shards(split):
            split_faults += _shard_faults(folder, shard, checker, summer)
            progress(shard.bytes)
        if checker and not split_faults and summer.totals() != manifest.totals(split):
            split_faults.append(f"{folder}: the totals of {split} are not those of its rows.")
        faults += split_faults
    if faults:
        lines = "\n".join(f"  {fault}" for fault in faults)
        raise DataError(f"{folder}: {len(faults)} faults; prepare the data again:\n{lines}")
    return manifest


def _folder_faults(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yield what is wrong besides the shards."""
    if replace(manifest, fingerprint="").with_fingerprint().fingerprint != manifest.fingerprint:
        yield f"{folder}: the manifest was changed: its fingerprint is not that of its fields."
    path = folder / VOCABULARY_NAME
    if not path.is_file() or sha256_file(path) != manifest.vocabulary.sha256:
        yield f"{path}: missing or changed: sha256 differs from the manifest's."
    listed = {shard.file for split in SPLITS for shard in manifest.shards(split)}
    for extra in sorted(path.name for path in folder.glob("*.tar") if path.name not in listed):
        yield f"{folder / extra}: not in the manifest."


def _shard_faults(
    folder: Path, shard: ShardEntry, checker: BlockChecker | None, summer: TotalsSummer
) -> list[str]:
    """Return what is wrong with one shard; at most one line."""
    path = folder / shard.file
    try:
        _check_file(path, shard)
        for where, block in read_shard(folder, shard):
            if checker is not None:
                checker.check(block, where)
                summer.add(block)
    except DataError as err:
        return [str(err)]
    return []


def _check_file(path: Path, shard: ShardEntry) -> None:
    """Raise DataError unless size, checksum and block table agree with the file."""
    if not path.is_file():
        raise DataError(f"{path}: missing.")
    if path.stat().st_size != shard.bytes:
        raise DataError(f"{path}: {path.stat().st_size} bytes, the manifest says {shard.bytes}.")
    digest = sha256_file(path)
    if digest != shard.sha256:
        raise DataError(f"{path}: changed: sha256 is {digest}, the manifest says {shard.sha256}.")
    if sum(entry.count for entry in shard.blocks) != shard.count:
        raise DataError(f"{path}: the counts of its blocks do not add up to {shard.count}.")


class BlockChecker:
    """Checks the rows of blocks against the data contract.

    Args:
        folder: the dataset folder, for its vocabulary.
        manifest: its manifest.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        special = load_vocabulary(folder / VOCABULARY_NAME).special_ids
        self._manifest = manifest
        self._cls, self._sep, self._pad = special["[CLS]"], special["[SEP]"], special["[PAD]"]
        self.unknown_id = special["[UNK]"]

    def check(self, block: Block, where: str) -> None:
        """Raise DataError, with row and rule, for a block that breaks the contract."""
        self._check_fields(block, where)
        length = block.length.astype(np.int64)
        start = np.cumsum(length) - length
        rows = np.arange(len(block))
        segment_a = block.segment_a_length.astype(np.int64)
        counts = block.num_predictions.astype(np.int64)
        has_pairs = self._manifest.pair_label_name is not None
        shortest, last_a = (5, length - 2) if has_pairs else (3, length)
        _rule(
            where, rows, (length < shortest) | (length > self._manifest.sequence_length), "length"
        )
        _rule(where, rows, (segment_a < 3) | (segment_a > last_a), "segment_a_length")
        if not has_pairs:
            _rule(where, rows, segment_a != length, "segment_a_length: a second segment")
        is_masked = self._manifest.parameters["masking"] != "none"
        fewest, most = (1, self._manifest.max_predictions_per_seq) if is_masked else (0, 0)
        _rule(where, rows, (counts < fewest) | (counts > most), "num_predictions")
        ends = np.stack([start + segment_a - 1, start + length - 1], axis=1)
        _rule(where, rows, block.tokens[start] != self._cls, "tokens: no [CLS] first")
        _rule(where, rows, (block.tokens[ends] != self._sep).any(axis=1), "tokens: no [SEP] at end")
        if block.pair_label is not None:
            _rule(where, rows, block.pair_label > 1, str(block.pair_label_name))
        token_row = np.repeat(rows, length)
        _rule(where, token_row, block.tokens >= self._manifest.vocabulary.size, "tokens: no piece")
        _rule(where, token_row, block.tokens == self._pad, "tokens: padding")
        self._check_predictions(block, where, np.repeat(rows, counts), length, segment_a)

    def _check_fields(self, block: Block, where: str) -> None:
        """Check the name of the label, and dtypes."""
        tokens = token_dtype(self._manifest.vocabulary.size)
        expected = {
            "tokens": tokens,
            "masked_lm_ids": tokens,
            "length": np.dtype(np.uint16),
            "segment_a_length": np.dtype(np.uint16),
            "num_predictions": count_dtype(self._manifest.max_predictions_per_seq),
            "masked_lm_positions": position_dtype(self._manifest.sequence_length),
        }
        if block.pair_label is not None:
            expected["pair_label"] = np.dtype(np.uint8)
        for name, dtype in expected.items():
            if getattr(block, name).dtype != dtype:
                raise DataError(f"{where}: field {name} is not {dtype}.")
        if block.pair_label_name != self._manifest.pair_label_name:
            raise DataError(
                f"{where}: the label is {block.pair_label_name}, the manifest says "
                f"{self._manifest.pair_label_name}."
            )

    def _check_predictions(
        self, block: Block, where: str, row: IntArray, length: IntArray, segment_a: IntArray
    ) -> None:
        """Check that positions increase within the row, off [CLS] and [SEP], and ids are pieces."""
        positions = block.masked_lm_positions.astype(np.int64)
        is_special = (positions == 0) | (positions >= length[row] - 1)
        is_special |= positions == segment_a[row] - 1
        _rule(where, row, is_special, "masked_lm_positions: outside the segments")
        is_unordered = (np.diff(positions) <= 0) & (np.diff(row) == 0)
        _rule(where, row[1:], is_unordered, "masked_lm_positions: not increasing")
        wrong = block.masked_lm_ids >= self._manifest.vocabulary.size
        wrong |= np.isin(block.masked_lm_ids, [self._pad, self._cls, self._sep])
        _rule(where, row, wrong, "masked_lm_ids: no piece of text")


def _rule(where: str, row: IntArray, is_broken: npt.NDArray[np.bool_], rule: str) -> None:
    """Raise DataError for the first element that breaks a rule."""
    if is_broken.any():
        raise DataError(f"{where} row {int(row[int(is_broken.argmax())])}: {rule}.")
