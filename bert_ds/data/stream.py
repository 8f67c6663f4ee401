"""Makes the updates of one rank, tensors cut into micro batches, ahead of time in a thread.

Hard here is the thread. It alone reads shards and makes batches, and hands them over through a
bounded queue, in stream order. What must not change:

- What is in the queue is not consumed: a checkpoint's position counts updates that were computed,
  so dropping the queue at the end loses no row.
- An error takes its place in the queue and is raised for the update that it belongs to, not
  earlier: `is_next_ready` is False for it, so that no rank raises while others train on.
- The thread waits with a timeout and looks whether it is to end, so `close` never needs its help;
  the thread itself closes the iterator, since a generator cannot be closed while it runs.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from bert_ds.batch import Batch
from bert_ds.config.recipe import BatchLayout
from bert_ds.data.layout import empty_micro_batch, micro_batches
from bert_ds.data.rows import RowStream, StreamSpec, UpdateRows

log = logging.getLogger(__name__)

_SECONDS_TO_CLOSE = 30.0


@dataclass(frozen=True)
class RankUpdate:
    """One rank's share of one update."""

    position: int
    """Stream position of the update's first row, all ranks."""
    micro_batches: tuple[Batch, ...]
    """The rank's rows in `gradient_accumulation_steps` micro batches; packed, at most that many."""
    micro_positions: tuple[int, ...]
    """A stream position for each of `gradient_accumulation_steps` micro batches, which keys its
    dropout: that of its first row if the rows are cut in order. No two over all ranks and updates
    are equal."""
    num_tokens: int
    """Real tokens in the rank's rows."""
    num_squared_lengths: int
    """Sum of the squares of the rows' lengths in tokens."""
    empty: Batch | None = None
    """A micro batch without rows, for when another rank has more micro batches; only if packed."""


class TrainStream:
    """Makes the updates of one rank, from any position on, in an endless stream."""

    def __init__(self, spec: StreamSpec, layout: BatchLayout = "unpadded") -> None:
        """Open nothing yet.

        Args:
            spec: what decides the rank's rows.
            layout: how the rows of a micro batch lie.
        """
        self._spec = spec
        self._layout = layout

    def updates(self, position: int) -> Generator[RankUpdate, None, None]:
        """Yield all updates from stream position `position`, a multiple of train_batch_size.

        Raises:
            DataError: a row of the next update cannot be read.
        """
        stream = RowStream(self._spec)
        try:
            for update in stream.updates(position):
                yield self._collated(update)
        finally:
            stream.close()

    def _collated(self, update: UpdateRows) -> RankUpdate:
        rows, batch = update.rows, self._spec.batch
        first = update.position + self._spec.rank * batch.sequences_per_rank
        size, longest = batch.micro_batch_size, self._spec.manifest.sequence_length
        empty = None
        if self._layout == "packed" and self._spec.batch.world_size > 1:
            empty = empty_micro_batch(rows, size, longest)
        return RankUpdate(
            position=update.position,
            micro_batches=micro_batches(rows, self._layout, size, longest),
            micro_positions=tuple(range(first, first + batch.sequences_per_rank, size)),
            num_tokens=len(rows.tokens),
            num_squared_lengths=int(np.square(rows.length, dtype=np.int64).sum()),
            empty=empty,
        )


class Prefetcher:
    """Runs an iterator of updates in a thread, a few updates ahead."""

    def __init__(self, updates: Generator[RankUpdate, None, None], depth: int = 2) -> None:
        """Start the thread.

        Args:
            updates: the updates to make.
            depth: how many updates may wait in the queue.
        """
        self._updates = updates
        self._queue: queue.Queue[RankUpdate | BaseException] = queue.Queue(maxsize=depth)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Prefetcher:
        return self

    def __next__(self) -> RankUpdate:
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def is_next_ready(self) -> bool:
        """Return whether the next update can be taken without waiting; False for an error."""
        waiting = self._queue.queue
        return bool(waiting) and not isinstance(waiting[0], BaseException)

    def close(self) -> None:
        """End the thread and close its iterator; updates that were made ahead are dropped.

        A thread that waits for a file system that does not answer is abandoned after half a minute.
        """
        self._is_closed.set()
        deadline = time.monotonic() + _SECONDS_TO_CLOSE
        while self._thread.is_alive() and time.monotonic() < deadline:
            try:
                self._queue.get(timeout=0.05)
            except queue.Empty:
                continue
        if self._thread.is_alive():
            log.warning("the thread that reads rows does not end; it is abandoned")

    def _fill(self) -> None:
        try:
            for update in self._updates:
                self._put(update)
                if self._is_closed.is_set():
                    return
        except BaseException as err:  # handed to the consumer, whatever it is
            self._put(err)
        finally:
            self._updates.close()

    def _put(self, item: RankUpdate | BaseException) -> None:
        while not self._is_closed.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return
            except queue.Full:
                continue
