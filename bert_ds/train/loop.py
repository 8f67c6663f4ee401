"""The training loop. It takes finished objects and only loops; the wiring is in `setup`.

A sum of a few host integers over the ranks, begun an update ahead (see `bert_ds.train.counts`),
tells every rank the global counts (the denominators of the loss) and whether any rank was asked to
stop. Nothing else is read from the device until the meter is due.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch

from bert_ds.batch import Batch
from bert_ds.data.stream import RankUpdate
from bert_ds.errors import DataError, DivergedError, TrainingError
from bert_ds.metrics.meter import Meter, UpdateRecord
from bert_ds.metrics.norms import ParameterNorms
from bert_ds.model import PretrainingOutput
from bert_ds.seeding import seed_dropout
from bert_ds.train.counts import CountedUpdates, Wait
from bert_ds.train.state import TrainState


class Engine(Protocol):
    """What the loop needs of an engine."""

    def micro_step(
        self, batch: Batch, num_predictions: int, num_pair_labels: int, *, is_last: bool
    ) -> PretrainingOutput: ...

    def set_learning_rate(self, learning_rate: float) -> None: ...

    @property
    def was_update_applied(self) -> bool: ...

    @property
    def loss_scale(self) -> float | None: ...

    def grad_norm(self) -> torch.Tensor | None: ...

    def norms(self) -> ParameterNorms | None: ...


@dataclass(frozen=True)
class LoopSettings:
    """What the loop is told.

    Attributes:
        phase: name of the phase, for messages.
        total_steps: applied updates at which the phase ends.
        train_batch_size: sequences per update, all ranks.
        checkpoint_every: applied updates between checkpoints.
        log_every: updates between reads of the device; a skipped update is read at once.
        evaluate_every: applied updates between evaluations; None for none.
        dropout_key: (seed, phase index); with a row's position it seeds dropout.
        device: where batches go.
    """

    phase: str
    total_steps: int
    train_batch_size: int
    checkpoint_every: int
    log_every: int
    evaluate_every: int | None
    dropout_key: tuple[int, int]
    device: torch.device


class Verdict(NamedTuple):
    """What an evaluation during training means for it; the same on every rank.

    Attributes:
        is_best: whether a checkpoint of the present weights is to be kept as the best.
        is_target_reached: whether the phase ends here.
    """

    is_best: bool
    is_target_reached: bool


@dataclass(frozen=True)
class LoopCalls:
    """What the loop asks others for.

    Attributes:
        learning_rate_at: of the update after so many applied ones.
        begin_sum: begins an element-wise sum of host integers over the ranks and returns what waits
            for it; all ranks call it once an update.
        begin_max: begins a largest likewise, once an update whose micro batches are packed, since
            their number differs from rank to rank.
        is_next_ready: whether the next update is there without waiting.
        stop_requested: whether this rank was asked to stop.
        evaluate: evaluates the present weights; all ranks call it together.
        save: writes a checkpoint of the present state; all ranks call it together. Takes whether it
            is the phase's end, and whether it is the best.
        doing: told whenever something begins that takes time.
    """

    learning_rate_at: Callable[[int], float]
    begin_sum: Callable[[list[int]], Wait]
    begin_max: Callable[[list[int]], Wait]
    is_next_ready: Callable[[], bool]
    stop_requested: Callable[[], bool]
    evaluate: Callable[[], Verdict]
    save: Callable[[bool, bool], None]
    doing: Callable[[str], None]


class Loop:
    """Trains one phase."""

    def __init__(
        self,
        engine: Engine,
        updates: Iterator[RankUpdate],
        state: TrainState,
        settings: LoopSettings,
        meter: Meter,
        calls: LoopCalls,
    ) -> None:
        """Take the parts.

        Args:
            engine: the phase's engine.
            updates: this rank's updates from `state.samples_seen` on.
            state: counters, advanced in place.
            settings: see `LoopSettings`.
            meter: takes a record of each update.
            calls: see `LoopCalls`.
        """
        self._engine = engine
        self._updates = CountedUpdates(
            updates, calls.is_next_ready, calls.begin_sum, calls.begin_max, calls.stop_requested
        )
        self._state = state
        self._settings = settings
        self._meter = meter
        self._calls = calls
        self._saved_at = state.global_step
        self._is_target_reached = False

    def train(self) -> bool:
        """Train until the phase is complete or a stop is asked for.

        A phase is complete after its last update, or when an evaluation finds its target reached.

        Returns:
            True when the phase is complete, False when it stopped on request.

        Raises:
            DataError: rows cannot be read; names the update.
            TrainingError: an update cannot be computed, or its loss is not a number; names it.
        """
        try:
            while not self._is_complete:
                number = f"{self._settings.phase}, update {self._state.global_step + 1}"
                if not self._do_update(number):
                    break
                self._look_and_save(number)
            self._meter.flush()
        except DivergedError:  # on all ranks; training may begin again
            self._updates.end()
            raise
        self._calls.doing(f"{self._settings.phase}: saving the last state")
        if self._state.global_step > self._saved_at:
            self._calls.save(self._is_complete, False)
        return self._is_complete

    @property
    def _is_complete(self) -> bool:
        return self._is_target_reached or self._state.global_step >= self._settings.total_steps

    @property
    def _may_be_the_last(self) -> bool:
        """Whether the phase may be complete after the next applied update."""
        step = self._state.global_step + 1
        return step >= self._settings.total_steps or _is_multiple(
            step, self._settings.evaluate_every
        )

    def _do_update(self, number: str) -> bool:
        """One update, unless a stop is asked for on any rank."""
        engine, state, calls = self._engine, self._state, self._calls
        started = time.perf_counter()
        calls.doing(f"{number}: waiting for rows")
        with _naming(number):
            self._updates.read()
        data_wait_s = time.perf_counter() - started
        calls.doing(f"{number}: waiting for the other ranks")
        update, counts = self._updates.take()
        if counts.num_stops:
            return False
        if update.empty is not None:
            update = _with_micro_batches(update, counts.num_micro_batches)
        if not self._may_be_the_last:
            self._updates.look_ahead()
        learning_rate = calls.learning_rate_at(state.global_step)
        engine.set_learning_rate(learning_rate)
        calls.doing(f"{number}: computing")
        num_sequences = self._settings.train_batch_size
        try:
            with _naming(number, self._meter):
                sums = compute_update(
                    engine, update, counts.num_predictions, counts.num_pair_labels, self._settings
                )
        except DivergedError:  # its rows are consumed: what follows begins after them
            state.record(
                was_applied=False, num_sequences=num_sequences, num_tokens=counts.num_tokens
            )
            raise
        state.record(
            was_applied=engine.was_update_applied,
            num_sequences=num_sequences,
            num_tokens=counts.num_tokens,
        )
        record = UpdateRecord(
            **vars(state),
            **_engine_metrics(engine),
            num_predictions=counts.num_predictions,
            num_pair_labels=counts.num_pair_labels,
            num_sequences=num_sequences,
            num_tokens=counts.num_tokens,
            num_squared_lengths=counts.num_squared_lengths,
            sums=sums,
            learning_rate=learning_rate,
            step_s=time.perf_counter() - started,
            data_wait_s=data_wait_s,
        )
        self._meter.add(record)
        return True

    def _look_and_save(self, number: str) -> None:
        """What is due after an update: reading what came out, an evaluation, a checkpoint."""
        step, settings, calls = self._state.global_step, self._settings, self._calls
        checkpoint_due = step - self._saved_at >= settings.checkpoint_every
        evaluation_due = self._engine.was_update_applied and _is_multiple(
            step, settings.evaluate_every
        )
        num_updates = step + self._state.skipped_steps  # one that is skipped leaves `step` as it is
        is_flush_due = num_updates % settings.log_every == 0 or not self._engine.was_update_applied
        if checkpoint_due or evaluation_due or is_flush_due:
            calls.doing(f"{number}: reading what came out")
            self._meter.flush()
        is_best = False
        if evaluation_due:
            calls.doing(f"{number}: evaluating")
            is_best, self._is_target_reached = calls.evaluate()
        if checkpoint_due or is_best or self._is_target_reached:
            calls.doing(f"{number}: saving")
            calls.save(self._is_complete, is_best)
            self._saved_at = step


def _is_multiple(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


def _with_micro_batches(update: RankUpdate, number: int) -> RankUpdate:
    """The update with empty micro batches up to as many as the rank with the most has."""
    missing = number - len(update.micro_batches)
    assert update.empty is not None
    return replace(update, micro_batches=update.micro_batches + (update.empty,) * missing)


def _engine_metrics(engine: Engine) -> dict[str, Any]:
    """Return what an engine knows of its last update, still on the device."""
    return {
        "was_applied": engine.was_update_applied,
        "grad_norm": engine.grad_norm(),
        "loss_scale": engine.loss_scale,
        "norms": engine.norms(),
    }


@contextmanager
def _naming(number: str, meter: Meter | None = None) -> Iterator[None]:
    """Errors name the update.

    Args:
        number: of the update, with its phase.
        meter: where all ranks meet the same errors together: what it holds is kept.
    """
    try:
        yield
    except torch.OutOfMemoryError as err:  # perhaps on one rank alone
        raise TrainingError(
            f"{number}: out of GPU memory ({err}). Set a smaller "
            "deepspeed.train_micro_batch_size_per_gpu (the result is the same), "
            "execution.recompute_every=1, or a higher ZeRO stage"
        ) from err
    except (DataError, TrainingError) as err:
        if meter is not None:
            meter.flush()
        raise type(err)(f"{number}: {err}") from err


def compute_update(
    engine: Engine,
    update: RankUpdate,
    num_predictions: int,
    num_pair_labels: int,
    settings: LoopSettings,
) -> torch.Tensor:
    """Forward and backward of an update's micro batches, the last of which applies it.

    The counts are those of the whole update, all ranks.

    Returns:
        This rank's sums over the update: float64 [4], in the order of `PretrainingOutput`.
    """
    sums = []
    last = len(update.micro_batches) - 1
    for number, micro_batch in enumerate(update.micro_batches):
        seed_dropout(*settings.dropout_key, update.micro_positions[number])
        output = engine.micro_step(
            micro_batch.to(settings.device),
            num_predictions,
            num_pair_labels,
            is_last=number == last,
        )
        sums.append(torch.stack([value.double() for value in output]))
    return torch.stack(sums).sum(dim=0)
