"""The loop alone, with a fake engine that knows nothing of DeepSpeed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from bert_ds.batch import PretrainingBatch
from bert_ds.data.collate import collate
from bert_ds.data.stream import RankUpdate
from bert_ds.errors import DataError, DivergedError, TrainingError
from bert_ds.metrics.meter import Meter
from bert_ds.objectives import PRETRAINING, NumAnswers, Sums, TermSums
from bert_ds.train.counts import CountedUpdates
from bert_ds.train.loop import EvaluationOutcome, Loop, LoopSettings
from bert_ds.train.state import TrainState
from tests.support.datasets import random_block

MICRO, ACCUMULATION = 3, 2
BATCH = MICRO * ACCUMULATION


class FakeEngine:
    """Counts calls; every `skip_every`-th update overflows."""

    def __init__(
        self, skip_every: int = 0, loss: float = 6.0, loss_scale: float | None = 1024.0
    ) -> None:
        self.loss_scale = loss_scale
        self.learning_rates: list[float] = []
        self.denominators: list[NumAnswers] = []
        self.last_flags: list[bool] = []
        self.dropout_draws: list[float] = []
        self.was_update_applied = True
        self._skip_every = skip_every
        self._loss = loss

    def micro_step(
        self, batch: PretrainingBatch, num_answers: NumAnswers, *, is_last: bool
    ) -> Sums:
        self.last_flags.append(is_last)
        self.denominators.append(num_answers)
        self.dropout_draws.append(float(torch.rand(())))
        number = len(self.denominators) // ACCUMULATION
        self.was_update_applied = not (self._skip_every and number % self._skip_every == 0)
        count = len(batch.masked_lm_ids)
        return {
            "mlm": TermSums(torch.tensor(self._loss * count), torch.tensor(2)),
            "nsp": TermSums(torch.tensor(1.5 if num_answers["nsp"] else 0.0), torch.tensor(1)),
        }

    def set_learning_rate(self, learning_rate: float) -> None:
        self.learning_rates.append(learning_rate)

    def grad_norm(self) -> torch.Tensor | None:
        return torch.tensor(0.5, dtype=torch.float64)

    def norms(self) -> None:
        return None


class Rows:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, rows: Any) -> None:
        self.rows += rows

    def write_evaluation(self, row: Any) -> None:
        raise AssertionError("the loop evaluates, and others write")

    def close(self) -> None:
        pass


def make_updates(start: int = 0, is_paired: bool = True) -> Iterator[RankUpdate]:
    position = start
    while True:
        blocks = [
            random_block(MICRO, 16, 64, position + i, is_paired=is_paired)
            for i in range(ACCUMULATION)
        ]
        yield RankUpdate(
            position,
            tuple(collate(block) for block in blocks),
            tuple(position + i * MICRO for i in range(ACCUMULATION)),
            sum(len(block.tokens) for block in blocks),
            sum(int((block.length.astype(int) ** 2).sum()) for block in blocks),
        )
        position += BATCH


class FakeActions:
    """Notes what begins; by default nothing is evaluated and nothing saved."""

    def __init__(
        self,
        evaluate: Callable[[], EvaluationOutcome] | None = None,
        save: Callable[[bool, bool], None] | None = None,
    ) -> None:
        self.noted: list[str] = []
        self._evaluate, self._save = evaluate, save

    def evaluate(self) -> EvaluationOutcome:
        assert self._evaluate is not None, "no evaluation was asked for"
        return self._evaluate()

    def save(self, *, is_phase_end: bool, is_best: bool) -> None:
        assert self._save is not None, "no checkpoint is due"
        self._save(is_phase_end, is_best)

    def progress(self, what: str) -> None:
        self.noted.append(what)


def counted(updates: Iterator[RankUpdate], **changes: Any) -> CountedUpdates:
    """Updates of a single rank."""
    same = changes.get("all_reduce_sum_async", lambda values: lambda: values)
    most = changes.get("all_reduce_max_async", lambda values: lambda: values)
    stop = changes.get("stop_requested", lambda: False)
    ready = changes.get("is_next_ready", lambda: False)
    return CountedUpdates(updates, ready, same, most, stop)


def settings(total_steps: int, checkpoint_every: int = 2, **changes: Any) -> LoopSettings:
    defaults: dict[str, Any] = {
        "phase": "phase1",
        "total_steps": total_steps,
        "train_batch_size": BATCH,
        "learning_rate_at": lambda step: 0.1 * (step + 1),
        "checkpoint_every": checkpoint_every,
        "log_every": 4,
        "evaluate_every": None,
        "dropout_key": (42, 0),
        "device": torch.device("cpu"),
    }
    return LoopSettings(**{**defaults, **changes})


def run(
    engine: FakeEngine,
    state: TrainState,
    *,
    total_steps: int = 6,
    stop_after: int | None = None,
    is_paired: bool = True,
    evaluate_every: int | None = None,
    updates: Iterator[RankUpdate] | None = None,
    evaluate: Callable[[], EvaluationOutcome] | None = None,
    **changes: Any,
) -> tuple[bool, list[dict[str, Any]], list[Any]]:
    """Whether the phase is complete, the rows, and what was saved when."""
    sink, saves = Rows(), []
    loop = Loop(
        engine,
        counted(
            updates or make_updates(state.samples_seen, is_paired),
            stop_requested=lambda: stop_after is not None and state.global_step >= stop_after,
            **changes,
        ),
        state,
        settings(total_steps, evaluate_every=evaluate_every),
        Meter("phase1", lambda tensor: tensor, [sink]),
        FakeActions(evaluate, lambda *flags: saves.append((state.global_step, *flags))),
    )
    return loop.train(), sink.rows, saves


def test_a_phase_runs_to_its_end_with_a_row_an_update_and_its_checkpoints() -> None:
    engine, state = FakeEngine(), TrainState()
    done, rows, saves = run(engine, state, total_steps=5)
    assert done
    assert [row["global_step"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["samples_seen"] for row in rows] == [6, 12, 18, 24, 30]
    assert engine.learning_rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert saves == [(2, False, False), (4, False, False), (5, True, False)]
    assert state.tokens_seen == rows[-1]["tokens_seen"] > 0


def test_evaluations_come_when_they_are_due_and_the_best_is_saved() -> None:
    state, seen = TrainState(), []

    def evaluate() -> EvaluationOutcome:
        seen.append(state.global_step)
        return EvaluationOutcome(is_best=state.global_step == 3, is_target_reached=False)

    engine = FakeEngine(skip_every=2)  # a skipped update is not evaluated again
    done, rows, saves = run(engine, state, evaluate_every=3, evaluate=evaluate, total_steps=7)
    assert done
    assert seen == [3, 6]
    assert saves == [
        (2, False, False), (3, False, True), (5, False, False), (7, True, False),
    ]  # fmt: skip
    assert [row["global_step"] for row in rows][-1] == 7


def test_a_phase_ends_when_its_target_is_reached() -> None:
    state = TrainState()
    outcome = EvaluationOutcome(is_best=False, is_target_reached=True)
    done, rows, saves = run(
        FakeEngine(), state, evaluate_every=3, evaluate=lambda: outcome, total_steps=9
    )
    assert done
    assert state.global_step == len(rows) == 3
    assert saves == [(2, False, False), (3, True, False)]


def test_whatever_may_take_time_is_noted_when_it_begins() -> None:
    actions = FakeActions(lambda: EvaluationOutcome(True, False), lambda *flags: None)
    loop = Loop(
        FakeEngine(), counted(make_updates()), TrainState(), settings(1, evaluate_every=1),
        Meter("phase1", lambda tensor: tensor, []), actions,
    )  # fmt: skip
    assert loop.train()
    assert actions.noted == [
        "phase1, update 1: waiting for rows",
        "phase1, update 1: waiting for the other ranks",
        "phase1, update 1: computing",
        "phase1, update 1: reading the results",
        "phase1, update 1: evaluating",
        "phase1, update 1: saving",
        "phase1: saving the last state",
    ]


def test_an_update_that_fails_keeps_what_was_logged_before_it() -> None:
    class Failing(FakeEngine):
        def micro_step(self, *arguments: Any, **flags: Any) -> Sums:
            if len(self.denominators) == 5:
                raise TrainingError("the gradients overflow")
            return super().micro_step(*arguments, **flags)

    sink = Rows()
    meter = Meter("phase1", lambda tensor: tensor, [sink])
    loop = Loop(
        Failing(), counted(make_updates()), TrainState(), settings(9, 9, log_every=9), meter,
        FakeActions(),
    )  # fmt: skip
    with pytest.raises(TrainingError, match="phase1, update 3: the gradients overflow"):
        loop.train()
    assert [row["global_step"] for row in sink.rows] == [1, 2]


def test_rows_that_cannot_be_read_and_memory_that_is_short_name_the_update() -> None:
    def broken() -> Iterator[RankUpdate]:
        yield next(make_updates())
        raise DataError("train-00000.tar is cut short")

    class TooLarge(FakeEngine):
        def micro_step(self, *arguments: Any, **flags: Any) -> Sums:
            raise torch.OutOfMemoryError("tried to allocate 2 GiB")

    cases = (
        (FakeEngine(), broken(), DataError, "phase1, update 2: train-00000.tar is cut short"),
        (TooLarge(), make_updates(), TrainingError, "phase1, update 1: out of GPU memory .tried"),
    )
    for engine, updates, error, message in cases:
        with pytest.raises(error, match=message):
            run(engine, TrainState(), updates=updates)


def test_losses_are_sums_over_global_counts() -> None:
    engine = FakeEngine()
    _, rows, _ = run(engine, TrainState(), total_steps=1)
    assert rows[0]["mlm_loss"] == pytest.approx(6.0)
    assert rows[0]["nsp_loss"] == pytest.approx(ACCUMULATION * 1.5 / BATCH)
    assert rows[0]["loss"] == pytest.approx(6.0 + 0.5)
    assert rows[0]["nsp_accuracy"] == pytest.approx(2 / 6)
    assert rows[0]["grad_norm"] == 0.5


def test_rows_without_a_pair_label_have_no_nsp_loss_and_no_nsp_accuracy() -> None:
    engine = FakeEngine()
    _, rows, _ = run(engine, TrainState(), total_steps=1, is_paired=False)
    assert engine.denominators == [{**engine.denominators[0], "nsp": 0}] * ACCUMULATION
    assert engine.denominators[0]["mlm"] > 0
    assert rows[0]["nsp_loss"] is None
    assert rows[0]["nsp_accuracy"] is None
    assert rows[0]["loss"] == rows[0]["mlm_loss"] == pytest.approx(6.0)


def test_a_rank_with_fewer_packed_micro_batches_computes_empty_ones() -> None:
    engine, state = FakeEngine(), TrainState()
    empty = collate(random_block(MICRO, 16, 64, 99, is_masked=False))

    def updates() -> Iterator[RankUpdate]:
        for update in make_updates():
            positions = tuple(range(update.position, update.position + 5))
            yield replace(update, empty=empty, micro_positions=positions)

    asked = []

    def most(numbers: list[int]) -> Callable[[], list[int]]:
        asked.extend(numbers)
        return lambda: [5]

    _, rows, _ = run(engine, state, total_steps=2, updates=updates(), all_reduce_max_async=most)
    assert asked == [ACCUMULATION, ACCUMULATION]
    assert engine.last_flags == [False, False, False, False, True] * 2
    assert len(set(engine.dropout_draws)) == 10
    assert rows[0]["mlm_loss"] == pytest.approx(6.0)  # the empty ones add nothing


def test_the_last_micro_batch_is_marked_and_no_maximum_is_reduced_where_all_have_as_many() -> None:
    engine = FakeEngine()

    def fail(_: int) -> Any:
        pytest.fail("not packed")

    run(engine, TrainState(), total_steps=2, all_reduce_max_async=fail)
    assert engine.last_flags == [False, True] * 2


def test_the_denominators_are_those_of_all_ranks() -> None:
    engine = FakeEngine()
    run(
        engine,
        TrainState(),
        total_steps=1,
        all_reduce_sum_async=lambda values: lambda: [v * 3 for v in values],
    )
    first = next(make_updates())
    expected = {"mlm": PRETRAINING.count(first.micro_batches)["mlm"] * 3, "nsp": BATCH * 3}
    assert engine.denominators == [expected] * ACCUMULATION


def test_skipped_updates_consume_rows_and_move_neither_step_nor_schedule() -> None:
    engine, state = FakeEngine(skip_every=2), TrainState()
    done, rows, _ = run(engine, state, total_steps=3)
    assert done
    assert (state.global_step, state.skipped_steps) == (3, 2)
    assert state.samples_seen == 5 * BATCH
    assert [row["global_step"] for row in rows] == [1, 1, 2, 2, 3]
    assert engine.learning_rates == pytest.approx([0.1, 0.2, 0.2, 0.3, 0.3])


def test_a_stop_request_ends_before_the_next_update_with_a_checkpoint_of_the_last() -> None:
    state = TrainState()
    done, rows, saves = run(FakeEngine(), state, stop_after=3)
    assert not done
    assert len(rows) == state.global_step == 3
    assert saves == [(2, False, False), (3, False, False)]


def test_a_stop_request_of_another_rank_ends_this_one_too() -> None:
    state = TrainState()

    def sum_async(values: list[int]) -> Callable[[], list[int]]:
        return lambda: [*values[:4], values[4] + 1]

    done, rows, saves = run(FakeEngine(), state, all_reduce_sum_async=sum_async)
    assert (done, rows, saves) == (False, [], [])


def test_a_resumed_loop_draws_the_dropout_of_the_undisturbed_one() -> None:
    whole, part = FakeEngine(), FakeEngine()
    run(whole, TrainState(), total_steps=4)
    torch.rand(17)  # whatever was drawn in between
    run(part, TrainState(global_step=2, samples_seen=2 * BATCH), total_steps=4)
    assert part.dropout_draws == whole.dropout_draws[2 * ACCUMULATION :]
    assert len(set(whole.dropout_draws)) == len(whole.dropout_draws)


def test_a_loss_that_is_not_a_number_stops_the_run_and_is_logged() -> None:
    sink = Rows()
    meter = Meter("phase1", lambda tensor: tensor, [sink])
    engine = FakeEngine(loss=float("nan"), loss_scale=None)
    loop = Loop(
        engine, counted(make_updates()), TrainState(), settings(4, log_every=1), meter,
        FakeActions(),
    )  # fmt: skip
    with pytest.raises(DivergedError, match="phase1 has diverged at update 1: the loss is nan"):
        loop.train()
    assert len(sink.rows) == 1


def test_a_skipped_update_is_read_at_once_and_not_only_at_multiples_of_the_interval() -> None:
    """`global_step` stands still while updates are skipped."""
    engine, sink, read = FakeEngine(skip_every=2), Rows(), []
    meter = Meter("phase1", lambda sums: read.append(len(sums)) or sums, [sink])
    loop = Loop(
        engine, counted(make_updates()), TrainState(), settings(3, 99, log_every=3), meter,
        FakeActions(save=lambda *flags: None),
    )  # fmt: skip
    assert loop.train()
    assert [row["skipped_steps"] for row in sink.rows] == [0, 1, 1, 2, 2]
    assert read == [2, 1, 1, 1]  # updates 2 and 4 are skipped, 3 is a multiple, 5 is the last


def test_without_a_loss_scale_a_skipped_update_is_a_divergence() -> None:
    sink = Rows()
    meter = Meter("phase1", lambda tensor: tensor, [sink])
    engine, state = FakeEngine(skip_every=2, loss_scale=None), TrainState()
    loop = Loop(
        engine, counted(make_updates()), state, settings(9, log_every=9), meter, FakeActions()
    )
    message = r"diverged at update 2: the loss is .* and the update was not applied\. Start a run"
    with pytest.raises(DivergedError, match=message):
        loop.train()
    assert (state.global_step, state.skipped_steps, len(sink.rows)) == (1, 1, 2)
