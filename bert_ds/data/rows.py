"""Selects one rank's rows of every update, without padding.

Update k of a phase takes stream rows [k B, (k + 1) B), B = train_batch_size; rank r takes the r-th
of world_size equal slices. `samples_seen` = k B is the whole resume state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert_ds.config.batch import BatchPlan
from bert_ds.data.cache import ShardCache
from bert_ds.data.masks import DynamicMasks, training_masks
from bert_ds.data.order import RowOrder
from bert_ds.data.reader import BlockReader
from bert_ds.data.row_copy import take_rows
from data_prep.contract.format import Block
from data_prep.contract.manifest import Manifest
from data_prep.contract.masking import MaskingKind


@dataclass(frozen=True)
class UpdateRows:
    """One rank's rows of one update."""

    position: int
    """Stream position of the update's first row, all ranks."""
    rows: Block
    """The rank's rows in stream order, masked."""


@dataclass(frozen=True)
class StreamSpec:
    """Everything that decides a rank's rows."""

    folder: Path
    """The dataset's folder."""
    manifest: Manifest
    """The dataset's manifest."""
    seed: int
    """The key of the order of rows and of dynamic masks."""
    batch: BatchPlan
    """How an update is split over ranks and micro batches."""
    rank: int
    """The rank that trains on the rows."""
    dynamic_masking: MaskingKind | None = None
    """How rows are masked as they are read; None if they are masked already."""
    cache_dir: Path | None = None
    """Where shards are copied to at their first use; None for no copies."""


class RowStream:
    """Reads the rows of one rank's updates, from any position on, in an endless stream."""

    def __init__(self, spec: StreamSpec) -> None:
        """Open the dataset.

        Raises:
            DataError: the rows are to be masked, and the vocabulary cannot be used.
        """
        self._batch = spec.batch
        self._rank = spec.rank
        cache = ShardCache(spec.cache_dir, spec.folder, spec.manifest) if spec.cache_dir else None
        self._reader = BlockReader(spec.folder, spec.manifest, "train", cache)
        self._order = RowOrder(self._reader.block_counts, seed=spec.seed)
        self._masks: DynamicMasks | None = None
        if spec.dynamic_masking is not None:
            kind = spec.dynamic_masking
            self._masks = training_masks(spec.folder, spec.manifest, kind, spec.seed)

    def updates(self, position: int) -> Iterator[UpdateRows]:
        """Yield all updates from stream position `position`, a multiple of train_batch_size."""
        while True:
            yield self.update(position)
            position += self._batch.train_batch_size

    def update(self, position: int) -> UpdateRows:
        """Return the rank's rows of the update whose first row is at `position`.

        Raises:
            DataError: a shard cannot be read or is not the one of its manifest.
        """
        first = position + self._rank * self._batch.sequences_per_rank
        parts = list(self._order.slices(first, first + self._batch.sequences_per_rank))
        rows = take_rows((self._reader.window(part.blocks), part.rows) for part in parts)
        if self._masks is not None:
            epochs = np.concatenate([np.full(len(part.rows), part.epoch) for part in parts])
            dataset_rows = np.concatenate([self._order.dataset_rows(part) for part in parts])
            rows = self._masks.applied_to(rows, epochs, dataset_rows)
        return UpdateRows(position, rows)

    def close(self) -> None:
        """Close the shard files."""
        self._reader.close()
