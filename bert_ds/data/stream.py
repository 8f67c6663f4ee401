"""The updates of one rank as tensors, cut into micro batches, made ready ahead of time."""

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
    """One rank's share of one update.

    Attributes:
        position: stream position of the update's first row, all ranks.
        micro_batches: the rank's rows, in `gradient_accumulation_steps` micro batches or, packed,
            in at most as many.
        micro_positions: a stream position for each of `gradient_accumulation_steps` micro batches,
            no two alike over all ranks and updates: that of its first row, as rows are cut.
        num_tokens: real tokens in the rank's rows.
        num_squared_lengths: sum of the squares of the rows' lengths in tokens.
        empty: packed, a micro batch without a row, for when another rank has more micro batches.
    """

    position: int
    micro_batches: tuple[Batch, ...]
    micro_positions: tuple[int, ...]
    num_tokens: int
    num_squared_lengths: int
    empty: Batch | None = None


class TrainStream:
    """Makes the updates of one rank, from any position on, without end."""

    def __init__(self, spec: StreamSpec, layout: BatchLayout = "unpadded") -> None:
        """Keep what to read and how the rows of a micro batch lie; open nothing yet."""
        self._spec = spec
        self._layout = layout

    def updates(self, position: int) -> Generator[RankUpdate, None, None]:
        """Updates from stream position `position` (a multiple of train_batch_size) on.

        Raises:
            DataError: while it is iterated, where a row is due that cannot be read.
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
    """Runs an iterator of updates in a thread, a few ahead; errors come out where they are due."""

    def __init__(self, updates: Generator[RankUpdate, None, None], depth: int = 2) -> None:
        """Args: the updates to make; how many may wait."""
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
        """Whether the next update is there; an error is not, it comes out where it is due."""
        waiting = self._queue.queue
        return bool(waiting) and not isinstance(waiting[0], BaseException)

    def close(self) -> None:
        """End the thread and what its iterator holds; what was made ahead is dropped.

        That loses nothing. A thread that waits for a file system that does not answer is left
        behind after half a minute.
        """
        self._is_closed.set()
        deadline = time.monotonic() + _SECONDS_TO_CLOSE
        while self._thread.is_alive() and time.monotonic() < deadline:
            try:
                self._queue.get(timeout=0.05)
            except queue.Empty:
                continue
        if self._thread.is_alive():
            log.warning("the thread that reads rows does not end; left behind")

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
