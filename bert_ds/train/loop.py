"""The training loop. It takes finished objects and only loops; `bert_ds.train.phase` builds them.

Nothing is read from the device until a flush of the meter is due: the counts that the loss is
divided by, and whether any rank was asked to stop, are host integers that are reduced over the
ranks an update ahead (see `bert_ds.train.counts`). All decisions (to stop, to evaluate, to write a
checkpoint, that the phase is complete) follow from numbers that are equal on all ranks, since each
of them leads to calls that all ranks must make together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from bert_ds.batch import Batch
from bert_ds.data.stream import RankUpdate
from bert_ds.errors import DataError, DivergedError, TrainingError
from bert_ds.metrics.meter import Meter, UpdateRecord
from bert_ds.metrics.norms import ParameterNorms
from bert_ds.objectives import PRETRAINING, NumAnswers, Sums
from bert_ds.seeding import seed_dropout
from bert_ds.train.counts import CountedUpdates, Counts
from bert_ds.train.state import TrainState


class Engine(Protocol):
    """What the loop needs of an engine."""

    def micro_step(self, batch: Batch, num_answers: NumAnswers, *, is_last: bool) -> Sums:
        """Compute forward and backward of a micro batch; the last one applies the update."""

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of the coming updates."""

    @property
    def was_update_applied(self) -> bool:
        """Whether the last update moved the weights; False where it was skipped."""

    @property
    def loss_scale(self) -> float | None:
        """Loss scale of fp16; None in other precisions."""

    def grad_norm(self) -> torch.Tensor | None:
        """Return the last update's gradient norm, a scalar on the device, where it is known."""

    def norms(self) -> ParameterNorms | None:
        """Return the last update's norms by parameter; None where it was skipped."""


class EvaluationOutcome(NamedTuple):
    """What an evaluation during training means for it; the same on every rank."""

    is_best: bool
    """Whether a checkpoint of the present weights is to be kept as the best one."""
    is_target_reached: bool
    """Whether the phase has reached its target and ends here."""


class Actions(Protocol):
    """What the loop has its phase do."""

    def evaluate(self) -> EvaluationOutcome:
        """Evaluate the present weights; all ranks call it together."""

    def save(self, *, is_phase_end: bool, is_best: bool) -> None:
        """Write a checkpoint of the present state; all ranks call it together."""

    def progress(self, what: str) -> None:
        """Note for the watchdog what begins now."""


@dataclass(frozen=True)
class LoopSettings:
    """A phase's settings, as far as the loop needs them."""

    phase: str
    """Name of the phase, for messages."""
    total_steps: int
    """Applied updates at which the phase ends."""
    train_batch_size: int
    """Sequences per update, all ranks."""
    learning_rate_at: Callable[[int], float]
    """Learning rate of the update after so many applied ones."""
    checkpoint_every: int
    """Applied updates between checkpoints."""
    log_every: int
    """Updates between reads of the device; a skipped update is read immediately."""
    evaluate_every: int | None
    """Applied updates between evaluations; None for none."""
    dropout_key: tuple[int, int]
    """(seed, phase index); with a row's position it seeds dropout."""
    device: torch.device
    """Where batches go."""


class Loop:
    """Trains one phase."""

    def __init__(
        self,
        engine: Engine,
        updates: CountedUpdates,
        state: TrainState,
        settings: LoopSettings,
        meter: Meter,
        actions: Actions,
    ) -> None:
        """Start nothing yet.

        Args:
            engine: the phase's engine.
            updates: this rank's updates, the first of which begins at row `state.samples_seen`.
            state: the counters, which the loop advances in place.
            settings: settings of the phase.
            meter: takes a record of each update.
            actions: evaluates, writes checkpoints and notes progress.
        """
        self._engine = engine
        self._updates = updates
        self._state = state
        self._settings = settings
        self._meter = meter
        self._actions = actions
        self._saved_at = state.global_step
        self._is_target_reached = False

    def train(self) -> bool:
        """Train until the phase is complete or a stop is requested.

        A phase is complete after its last update, or when an evaluation finds its target reached.

        Returns:
            True if the phase is complete, False if it stopped on request.

        Raises:
            DataError: rows cannot be read; the message names the update.
            TrainingError: an update cannot be computed, or its loss is not a number; the message
                names the update.
        """
        engine, state, settings = self._engine, self._state, self._settings
        progress = self._actions.progress
        try:
            while not self._is_complete:
                where = f"{settings.phase}, update {state.global_step + 1}"
                started = time.perf_counter()

                # The rows of this rank, and the counts of all ranks.
                progress(f"{where}: waiting for rows")
                with _errors_named(where):
                    self._updates.prefetch()
                data_wait_s = time.perf_counter() - started
                progress(f"{where}: waiting for the other ranks")
                update, counts = self._updates.next()
                if counts.num_stops:  # equal on all ranks, so that all of them stop here
                    break
                if not self._may_be_the_last:  # the next counts are reduced during this update
                    self._updates.try_prefetch()

                # Forward and backward of the micro batches, the last of which applies the update.
                learning_rate = settings.learning_rate_at(state.global_step)
                engine.set_learning_rate(learning_rate)
                progress(f"{where}: computing")
                sums = self._compute_and_count(where, update, counts)

                # The record stays on the device until a flush is due.
                self._meter.add(
                    UpdateRecord(
                        **vars(state),
                        num_answers=counts.num_answers,
                        num_sequences=settings.train_batch_size,
                        num_tokens=counts.num_tokens,
                        num_squared_lengths=counts.num_squared_lengths,
                        sums=sums,
                        was_applied=engine.was_update_applied,
                        learning_rate=learning_rate,
                        grad_norm=engine.grad_norm(),
                        loss_scale=engine.loss_scale,
                        norms=engine.norms(),
                        step_s=time.perf_counter() - started,
                        data_wait_s=data_wait_s,
                    )
                )
                self._flush_evaluate_save(where)
            self._meter.flush()
        except DivergedError:  # on all ranks together; the phase may roll back and train again
            self._updates.drain()
            raise
        progress(f"{settings.phase}: saving the last state")
        if state.global_step > self._saved_at:
            self._actions.save(is_phase_end=self._is_complete, is_best=False)
        return self._is_complete

    @property
    def _is_complete(self) -> bool:
        return self._is_target_reached or self._state.global_step >= self._settings.total_steps

    @property
    def _may_be_the_last(self) -> bool:
        """Whether the phase may be complete after the update that is due now."""
        step = self._state.global_step + 1
        return step >= self._settings.total_steps or _is_multiple(
            step, self._settings.evaluate_every
        )

    def _compute_and_count(self, where: str, update: RankUpdate, counts: Counts) -> torch.Tensor:
        """Compute an update and count it; its rows count as consumed even if training diverges."""
        consumed = (self._settings.train_batch_size, counts.num_tokens)
        try:
            with _errors_named(where, self._meter):
                sums = compute_update(self._engine, update, counts.num_answers, self._settings)
        except DivergedError:
            self._state.record(*consumed, was_applied=False)
            raise
        self._state.record(*consumed, was_applied=self._engine.was_update_applied)
        return sums

    def _flush_evaluate_save(self, where: str) -> None:
        """Do what is due after an update: flush the meter, evaluate, write a checkpoint."""
        step, settings, actions = self._state.global_step, self._settings, self._actions
        was_applied = self._engine.was_update_applied
        checkpoint_due = step - self._saved_at >= settings.checkpoint_every
        evaluation_due = was_applied and _is_multiple(step, settings.evaluate_every)
        num_updates = step + self._state.skipped_steps  # a skipped one does not change `step`
        flush_due = num_updates % settings.log_every == 0 or not was_applied
        if checkpoint_due or evaluation_due or flush_due:
            actions.progress(f"{where}: reading the results")
            self._meter.flush()
        is_best = False
        if evaluation_due:
            actions.progress(f"{where}: evaluating")
            is_best, self._is_target_reached = actions.evaluate()
        if checkpoint_due or is_best or self._is_target_reached:
            actions.progress(f"{where}: saving")
            actions.save(is_phase_end=self._is_complete, is_best=is_best)
            self._saved_at = step


def _is_multiple(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


@contextmanager
def _errors_named(where: str, meter: Meter | None = None) -> Iterator[None]:
    """Put the update's name in front of the messages of errors.

    Args:
        where: the phase and the number of the update.
        meter: a meter to flush first; only where all ranks raise the error together, since a flush
            is an all-reduce.
    """
    try:
        yield
    except torch.OutOfMemoryError as err:  # perhaps on this rank only, so without a flush
        raise TrainingError(
            f"{where}: out of GPU memory ({err}). Set a smaller "
            "deepspeed.train_micro_batch_size_per_gpu (the result is the same), "
            "execution.recompute_every=1, or a higher ZeRO stage"
        ) from err
    except (DataError, TrainingError) as err:
        if meter is not None:
            meter.flush()
        raise type(err)(f"{where}: {err}") from err


def compute_update(
    engine: Engine, update: RankUpdate, num_answers: NumAnswers, settings: LoopSettings
) -> torch.Tensor:
    """Compute forward and backward of an update's micro batches, the last of which applies it.

    Args:
        engine: the phase's engine.
        update: this rank's rows.
        num_answers: answers of each term in the whole update, all ranks.
        settings: settings of the loop.

    Returns:
        This rank's sums over the update, in the order of `ObjectiveSet.flatten`.
    """
    sums = []
    last = len(update.micro_batches) - 1
    for number, micro_batch in enumerate(update.micro_batches):
        seed_dropout(*settings.dropout_key, update.micro_positions[number])
        found = engine.micro_step(
            micro_batch.to(settings.device), num_answers, is_last=number == last
        )
        sums.append(PRETRAINING.flatten(found))
    return torch.stack(sums).sum(dim=0)
