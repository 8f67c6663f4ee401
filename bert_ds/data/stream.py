"""The updates of one rank: which rows, cut into micro batches, made ready ahead of time.

Update k of a phase takes stream rows [k B, (k + 1) B), B = train_batch_size; rank r takes the r-th
of world_size equal slices. `samples_seen` = k B is the whole resume state.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from bert_ds.batch import PretrainingBatch
from bert_ds.config.batch import BatchPlan
from bert_ds.data.collate import collate
from bert_ds.data.order import RowOrder
from bert_ds.data.reader import BlockReader
from data_prep.format import concatenate_blocks, select_rows


@dataclass(frozen=True)
class RankUpdate:
    """One rank's share of one update.

    Attributes:
        position: stream position of the update's first row, all ranks.
        micro_batches: the rank's rows, `gradient_accumulation_steps` of them.
        micro_positions: stream position of the first row of each micro batch.
        num_predictions: masked positions in the rank's rows.
        num_tokens: real tokens in the rank's rows.
    """

    position: int
    micro_batches: tuple[PretrainingBatch, ...]
    micro_positions: tuple[int, ...]
    num_predictions: int
    num_tokens: int


class TrainStream:
    """Makes the updates of one rank, from any position on, without end."""

    def __init__(self, reader: BlockReader, order: RowOrder, batch: BatchPlan, rank: int) -> None:
        self._reader = reader
        self._order = order
        self._batch = batch
        self._rank = rank

    def updates(self, position: int) -> Iterator[RankUpdate]:
        """Updates from stream position `position` (a multiple of train_batch_size) on."""
        while True:
            yield self.update(position)
            position += self._batch.train_batch_size

    def update(self, position: int) -> RankUpdate:
        """The rank's share of the update whose first row is at `position`."""
        first = position + self._rank * self._batch.sequences_per_rank
        size = self._batch.micro_batch_size
        starts = tuple(range(first, first + self._batch.sequences_per_rank, size))
        micro_batches, num_predictions, num_tokens = [], 0, 0
        for start in starts:
            rows = concatenate_blocks(
                [
                    select_rows(self._reader.window(part.blocks), part.rows)
                    for part in self._order.slices(start, start + size)
                ]
            )
            num_predictions += len(rows.masked_lm_ids)
            num_tokens += len(rows.tokens)
            micro_batches.append(collate(rows))
        return RankUpdate(position, tuple(micro_batches), starts, num_predictions, num_tokens)


class Prefetcher:
    """Runs an iterator of updates in a thread, a few ahead; errors come out where they are due."""

    def __init__(self, updates: Iterator[RankUpdate], depth: int = 2) -> None:
        """Args: the updates to make; how many may wait."""
        self._updates = updates
        self._queue: queue.Queue[RankUpdate | BaseException] = queue.Queue(maxsize=depth)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[RankUpdate]:
        return self

    def __next__(self) -> RankUpdate:
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """End the thread; updates that were made ahead are dropped, which loses nothing."""
        self._is_closed.set()
        while self._thread.is_alive():
            try:
                self._queue.get(timeout=0.05)
            except queue.Empty:
                continue

    def _fill(self) -> None:
        try:
            for update in self._updates:
                self._put(update)
                if self._is_closed.is_set():
                    return
        except BaseException as err:  # handed to the consumer, whatever it is
            self._put(err)

    def _put(self, item: RankUpdate | BaseException) -> None:
        while not self._is_closed.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return
            except queue.Full:
                continue
