"""The counts of an update over all ranks, reduced while the update before it is computed.

The denominators of the loss are counts over all ranks, which must be known before the first forward
pass. Waiting for them at that point would cost a round over the network in every update:
microseconds on two hosts, but gloo passes sums around a ring, so the time grows with the number of
ranks. Here the all-reduce of an update starts as soon as its rows are there, while the update
before it is computed.

Hard here: every rank must start the same all-reduces in the same order, or all of them hang. Each
rank starts one when its own rows are there, early or late. That is safe because an update has
exactly one sum (and, where micro batches are packed, one maximum before it) and because nothing
else uses their process group. What must not change:

- Whether the next update may be prefetched before this one has ended depends only on what all ranks
  know (`Loop` asks for it only where the phase cannot end first). Otherwise a rank would leave the
  loop with an all-reduce started that another rank never starts.
- After an error that all ranks share, every rank calls `drain`: it starts what other ranks may have
  started, finishes it and drops the result, so that the next phase begins with nothing pending.
- The rows come from a thread (`bert_ds.data.stream.Prefetcher`); all-reduces are started by the
  thread that trains, never by that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from bert_ds.data.stream import RankUpdate
from bert_ds.objectives import PRETRAINING, NumAnswers

PendingReduce = Callable[[], list[int]]
"""An all-reduce of host integers under way: waits for its result and returns it."""
AllReduceAsync = Callable[[list[int]], PendingReduce]
"""Starts an element-wise all-reduce; all ranks start the same ones in the same order."""


class Counts(NamedTuple):
    """The counts of one update over all ranks."""

    num_answers: NumAnswers
    """Answers of each of the objectives' terms: the denominators of the loss."""
    num_tokens: int
    """Real tokens."""
    num_squared_lengths: int
    """Sum of the squares of the rows' lengths."""
    num_stops: int
    """Ranks that were asked to stop."""


_NAMES = tuple(term.name for term in PRETRAINING.terms)
_NUM_SUMS = len(_NAMES) + len(Counts._fields) - 1


@dataclass(frozen=True)
class _Started:
    """An update whose counts are being reduced."""

    update: RankUpdate | None
    """The update; None for one that is only drained."""
    sums: PendingReduce
    """Its counts, flat."""
    most_micro_batches: PendingReduce | None
    """Micro batches of the rank that has the most, where that differs from rank to rank."""


class CountedUpdates:
    """This rank's updates, each with the counts of all ranks."""

    def __init__(
        self,
        updates: Iterator[RankUpdate],
        is_next_ready: Callable[[], bool],
        all_reduce_sum_async: AllReduceAsync,
        all_reduce_max_async: AllReduceAsync,
        stop_requested: Callable[[], bool],
    ) -> None:
        """Start nothing yet.

        Args:
            updates: this rank's updates.
            is_next_ready: whether the next update is there without waiting.
            all_reduce_sum_async: starts a sum over the ranks, one an update.
            all_reduce_max_async: starts a maximum over the ranks, one an update that is packed.
            stop_requested: whether this rank was asked to stop.
        """
        self._updates = updates
        self._is_next_ready = is_next_ready
        self._all_reduce_sum_async = all_reduce_sum_async
        self._all_reduce_max_async = all_reduce_max_async
        self._stop_requested = stop_requested
        self._started: _Started | None = None
        self._is_packed = False

    def prefetch(self) -> None:
        """Wait for the rows of the next update and start the reduction of its counts.

        Raises:
            DataError: the rows cannot be read.
        """
        if self._started is None:
            self._start(next(self._updates))

    def try_prefetch(self) -> None:
        """Do what `prefetch` does, if the rows are there already; never wait.

        All ranks call it for the same updates, and some of them may have the rows and others not.
        """
        if self._started is None and self._is_next_ready():
            self._start(next(self._updates))

    def next(self) -> tuple[RankUpdate, Counts]:
        """Return the update that was prefetched and its counts; wait for the other ranks.

        A rank that has fewer packed micro batches than another one gets empty ones in addition:
        all ranks call the engine equally often.
        """
        started = self._started
        assert started is not None and started.update is not None, "prefetch() comes first"
        self._started = None
        update = started.update
        sums = started.sums()
        if started.most_micro_batches is not None:
            assert update.empty is not None
            num_missing = started.most_micro_batches()[0] - len(update.micro_batches)
            filled = update.micro_batches + (update.empty,) * num_missing
            update = replace(update, micro_batches=filled)
        num_answers = dict(zip(_NAMES, sums, strict=False))
        return update, Counts(num_answers, *sums[len(_NAMES) :])

    def drain(self) -> None:
        """Finish, after an error that all ranks share, what some of them have started.

        Otherwise those ranks would stay one all-reduce ahead of the others.
        """
        if self._started is None:
            most = self._all_reduce_max_async([0]) if self._is_packed else None
            self._started = _Started(None, self._all_reduce_sum_async([0] * _NUM_SUMS), most)
        self._started.sums()
        if self._started.most_micro_batches is not None:
            self._started.most_micro_batches()
        self._started = None

    def _start(self, update: RankUpdate) -> None:
        self._is_packed = update.empty is not None
        num_answers = PRETRAINING.count(update.micro_batches)
        counts = [
            *(num_answers[name] for name in _NAMES),
            update.num_tokens,
            update.num_squared_lengths,
            int(self._stop_requested()),
        ]
        most = None
        if self._is_packed:
            most = self._all_reduce_max_async([len(update.micro_batches)])
        self._started = _Started(update, self._all_reduce_sum_async(counts), most)
