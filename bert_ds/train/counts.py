"""The counts of an update over all ranks, reduced while the update before it is computed.

The denominators of the loss are counts over all ranks, which must be there before the first forward
pass. Asking for them then costs a round over the network an update: microseconds on two hosts, but
gloo passes sums around a ring, so that it grows with the number of ranks. Here the sum is begun
when the rows are there and the update before has begun.

The ranks begin it when it suits each of them; since nothing else uses these sums' process group,
they meet in the right order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from bert_ds.data.stream import RankUpdate

Wait = Callable[[], list[int]]
"""Waits for numbers that were asked for, and gives them."""


class Counts(NamedTuple):
    """Of one update, all ranks.

    Attributes:
        num_predictions: masked positions.
        num_pair_labels: rows with a pair label.
        num_tokens: real tokens.
        num_squared_lengths: sum of the squares of the rows' lengths.
        num_stops: ranks that were asked to stop.
        num_micro_batches: of the rank that has the most.
    """

    num_predictions: int
    num_pair_labels: int
    num_tokens: int
    num_squared_lengths: int
    num_stops: int
    num_micro_batches: int


_NUM_SUMS = len(Counts._fields) - 1
"""All but the last are sums."""


@dataclass(frozen=True)
class _Begun:
    update: RankUpdate | None
    sums: Wait
    most: Wait | None


class CountedUpdates:
    """This rank's updates, each with the counts of all ranks."""

    def __init__(
        self,
        updates: Iterator[RankUpdate],
        is_next_ready: Callable[[], bool],
        begin_sum: Callable[[list[int]], Wait],
        begin_max: Callable[[list[int]], Wait],
        stop_requested: Callable[[], bool],
    ) -> None:
        """Take the parts.

        Args:
            updates: this rank's.
            is_next_ready: whether the next one is there without waiting.
            begin_sum: begins an element-wise sum over all ranks, in order of the calls.
            begin_max: begins a largest of all ranks likewise.
            stop_requested: whether this rank was asked to stop.
        """
        self._updates = updates
        self._is_next_ready = is_next_ready
        self._begin_sum = begin_sum
        self._begin_max = begin_max
        self._stop_requested = stop_requested
        self._begun: _Begun | None = None
        self._is_packed = False

    def read(self) -> None:
        """Have the next update here and its sums begun; waits for its rows.

        Raises:
            DataError: they cannot be read.
        """
        if self._begun is None:
            self._begin(next(self._updates))

    def look_ahead(self) -> None:
        """The same where that needs no waiting; every rank calls it for the same updates."""
        if self._begun is None and self._is_next_ready():
            self._begin(next(self._updates))

    def take(self) -> tuple[RankUpdate, Counts]:
        """The update that was read, and its counts; waits for the other ranks."""
        begun = self._begun
        assert begun is not None and begun.update is not None, "read() comes first"
        self._begun = None
        sums = begun.sums()
        most = begun.most()[0] if begun.most is not None else len(begun.update.micro_batches)
        return begun.update, Counts._make([*sums, most])

    def end(self) -> None:
        """After a failure that all ranks share: finish what some of them have begun.

        Otherwise those would be one sum ahead of the others for ever.
        """
        if self._begun is None:
            most = self._begin_max([0]) if self._is_packed else None
            self._begun = _Begun(None, self._begin_sum([0] * _NUM_SUMS), most)
        self._begun.sums()
        if self._begun.most is not None:
            self._begun.most()
        self._begun = None

    def _begin(self, update: RankUpdate) -> None:
        self._is_packed = update.empty is not None
        counts = Counts(
            update.num_predictions,
            update.num_pair_labels,
            update.num_tokens,
            update.num_squared_lengths,
            int(self._stop_requested()),
            len(update.micro_batches),
        )
        most = self._begin_max([counts.num_micro_batches]) if self._is_packed else None
        self._begun = _Begun(update, self._begin_sum(list(counts[:_NUM_SUMS])), most)
