"""Counts that are reduced an update ahead, on two ranks in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from bert_ds.data.stream import RankUpdate
from bert_ds.objectives import PRETRAINING
from bert_ds.train.counts import CountedUpdates
from bert_ds.train.state import TrainState
from tests.unit.bert_ds.train.test_loop import BATCH, FakeEngine, make_updates, run


class Sums:
    """Sums over two ranks, which meet by the number of the call; they must all be waited for."""

    def __init__(self) -> None:
        self.begun: list[list[list[int]]] = [[], []]

    def of(self, rank: int) -> Callable[[list[int]], Callable[[], list[int]]]:
        def begin(values: list[int]) -> Callable[[], list[int]]:
            number = len(self.begun[rank])
            self.begun[rank].append(values)

            def wait() -> list[int]:
                mine, others = self.begun[rank][number], self.begun[1 - rank][number]
                return [a + b for a, b in zip(mine, others, strict=True)]

            return wait

        return begin


def counted(rank: int, sums: Sums, is_ready: bool, **changes: Any) -> CountedUpdates:
    return CountedUpdates(
        make_updates(start=rank * 1000),
        lambda: is_ready,
        sums.of(rank),
        changes.get("all_reduce_max_async", lambda _: pytest.fail("not packed")),
        changes.get("stop_requested", lambda: False),
    )


def test_ranks_that_begin_at_different_times_get_the_same_sums() -> None:
    sums = Sums()
    early, late = counted(0, sums, is_ready=True), counted(1, sums, is_ready=False)
    expected = list(zip(islice(make_updates(0), 3), islice(make_updates(1000), 3), strict=True))
    for rank in (early, late):
        rank.prefetch()
    for mine, other in expected:
        num_predictions = PRETRAINING.count(mine.micro_batches + other.micro_batches)["mlm"]
        for rank, update in ((early, mine), (late, other)):
            found, counts = rank.next()
            assert found.position == update.position
            assert counts.num_answers == {"mlm": num_predictions, "nsp": 2 * BATCH}
            assert len(found.micro_batches) == len(update.micro_batches)
            rank.try_prefetch()
        assert len(sums.begun[0]) == len(sums.begun[1]) + 1  # one has begun, the other has not
        for rank in (early, late):
            rank.prefetch()


def test_after_a_failure_that_all_share_no_rank_is_ahead() -> None:
    sums = Sums()
    early, late = counted(0, sums, is_ready=True), counted(1, sums, is_ready=False)
    for rank in (early, late):
        rank.prefetch()
    for rank in (early, late):
        rank.next()
        rank.try_prefetch()
    late.drain()
    early.drain()
    assert len(sums.begun[0]) == len(sums.begun[1]) == 2
    assert sums.begun[1][-1] == [0] * len(sums.begun[0][0])


def test_a_loop_whose_rows_come_early_trains_the_same() -> None:
    plain, ahead = FakeEngine(skip_every=2), FakeEngine(skip_every=2)
    _, expected, _ = run(plain, TrainState(), total_steps=5)
    done, found, _ = run(ahead, TrainState(), total_steps=5, is_next_ready=lambda: True)
    assert done
    without_times = [
        [{k: v for k, v in row.items() if not k.endswith(("_s", "_per_s"))} for row in rows]
        for rows in (found, expected)
    ]
    assert without_times[0] == without_times[1]
    assert ahead.dropout_draws == plain.dropout_draws


def test_nothing_is_read_beyond_the_end_of_a_phase() -> None:
    taken = []

    def updates() -> Iterator[RankUpdate]:
        for update in make_updates():
            taken.append(update.position)
            yield update

    state = TrainState()
    run(FakeEngine(), state, total_steps=3, updates=updates(), is_next_ready=lambda: True)
    assert taken == [0, BATCH, 2 * BATCH]
    assert state.samples_seen == 3 * BATCH


def test_a_stop_request_takes_effect_an_update_later_at_most() -> None:
    state = TrainState()
    done, _, saves = run(FakeEngine(), state, stop_after=3, is_next_ready=lambda: True)
    assert not done
    assert state.global_step == 4
    assert saves[-1] == (4, False, False)
