"""One phase of a run: builds its model, engine, data and loop, and trains it to its end."""

from __future__ import annotations

import functools
import gc
import logging
import math
import sys
import time
from dataclasses import dataclass
from math import inf
from pathlib import Path

import torch

from bert_ds.checkpoint.content import Checkpoint, CheckpointState, load_checkpoint, load_weights
from bert_ds.checkpoint.writer import CheckpointWriter, tensors_of
from bert_ds.config.recipe import PhaseConfig, RunConfig
from bert_ds.data.stream import Prefetcher
from bert_ds.durations import duration
from bert_ds.errors import DivergedError, StopRequested
from bert_ds.metrics.meter import Meter, Sink
from bert_ds.metrics.sinks import JsonLinesSink, ProgressSink, TensorBoardSink
from bert_ds.model.families import PretrainingModel
from bert_ds.objectives import PRETRAINING
from bert_ds.optim import learning_rate_at
from bert_ds.optim.state import load_optimizer_tensors, optimizer_step
from bert_ds.train import setup
from bert_ds.train.counts import CountedUpdates
from bert_ds.train.evaluate import evaluate_held_out
from bert_ds.train.init_from import load_init_from
from bert_ds.train.loop import EvaluationOutcome, Loop, LoopSettings
from bert_ds.train.rollback import may_roll_back, roll_back
from bert_ds.train.run import Run, drop_rows_after, latest_checkpoint
from bert_ds.train.state import TrainState
from bert_ds.train.summary import phase_entries

log = logging.getLogger(__name__)


def run_phase(run: Run, phase_index: int, checkpoint: Path | None) -> None:
    """Train one phase to its end, from a checkpoint or, without one, from the initial weights.

    Args:
        run: the run, opened and checked.
        phase_index: number of the phase in the recipe, from 0.
        checkpoint: folder of a checkpoint of this phase, or of the end of the phase before. It is
            read here and not by the caller, who would keep its tensors in memory all the time.

    Raises:
        StopRequested: a stop was requested; the state is saved.
        DivergedError: training has diverged, and a rollback is not configured or not possible.
    """
    while True:
        is_complete = _Phase.open(run, phase_index, checkpoint).train()
        release_memory(run.device)
        if is_complete:
            return
        checkpoint = latest_checkpoint(run)


def release_memory(device: torch.device) -> None:
    """Free what the objects of a finished phase hold, on the host and on the GPU.

    An engine, its model and the hooks between them refer to each other in circles, and training
    makes too few new objects for Python to collect them by itself: weights, masters, moments and
    gradients of one phase would stay in memory next to those of the next.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


@dataclass
class _Phase:
    """A phase with its model, engine, data and loop; the loop's `Actions`.

    Every phase builds its own model: what an engine makes of one (half precision, flat buffers,
    partitions) ends with the phase.
    """

    run: Run
    """What all phases share."""
    index: int
    """Number of the phase in the recipe, from 0."""
    model: PretrainingModel
    """The model, which the engine trains in place."""
    parts: setup.PhaseSetup
    """Engine, stream of rows and batch sizes."""
    state: TrainState
    """The counters, which the loop advances."""
    sinks: list[Sink]
    """Where metrics go; none except on rank 0."""
    meter: Meter
    """Gathers metrics and hands them to the sinks."""
    writer: CheckpointWriter
    """Writes checkpoints; used on rank 0 only."""

    @classmethod
    def open(cls, run: Run, index: int, path: Path | None) -> _Phase:
        """Build everything that the phase needs, with the state of the checkpoint at `path`.

        Args:
            run: the run, opened and checked.
            index: number of the phase in the recipe, from 0.
            path: folder of a checkpoint; None for the start of the run.
        """
        phase = run.config.phases[index]
        run.watchdog.progress(f"{phase.name}: building the model and its engine")
        checkpoint = load_checkpoint(path) if path else None
        model = model_with_weights(run, checkpoint)
        parts = setup.build_phase(run.config, index, model, run.data[index], run.world)
        state = _restore_state(run, index, parts, checkpoint)
        sinks = _open_sinks(run, index, state)
        meter = Meter(
            phase.name,
            run.comm.all_reduce,
            sinks,
            norms_by_layer=run.config.logging.norms_by_layer,
            throughput=setup.throughput_of(run.config, phase, run.world, run.device),
        )
        writer = CheckpointWriter(run.folder.checkpoints, run.config.checkpoint)
        return cls(run, index, model, parts, state, sinks, meter, writer)

    @property
    def config(self) -> PhaseConfig:
        """Settings of the phase."""
        return self.run.config.phases[self.index]

    def train(self) -> bool:
        """Train to the end; return False after a rollback, when the phase must be opened again.

        Raises:
            StopRequested: a stop was requested; the state is saved.
            DivergedError: training has diverged, and there is no rollback.
        """
        run, state = self.run, self.state
        started, started_samples = time.monotonic(), state.samples_seen
        diverged = ""
        is_complete = False
        updates = Prefetcher(self.parts.stream.updates(state.samples_seen))
        counted = CountedUpdates(
            updates,
            updates.is_next_ready,
            run.comm.begin_sum,
            run.comm.begin_max,
            lambda: run.stop.is_set or self.writer.has_failed,
        )
        loop = Loop(self.parts.engine, counted, state, self._loop_settings(), self.meter, self)
        try:
            is_complete = loop.train()
        except DivergedError as err:
            diverged = str(err)  # the error itself would keep the engine in memory
        finally:
            updates.close()
            for sink in self.sinks:
                sink.close()
        run.comm.run_on_all_ranks(self.writer.wait)
        if run.is_main:
            run.folder.update_summary(phases=phase_entries(run.config, run.folder.metrics))
        self.parts.engine.destroy()
        if diverged:
            self._roll_back_or_raise(diverged)
        elif not is_complete:
            self._raise_stop()
        elif run.is_main:
            seconds = time.monotonic() - started
            rate = (state.samples_seen - started_samples) / max(seconds, 1e-9)
            log.info(
                "%s complete: %d updates, %s, %.0f sequences/s",
                self.config.name, state.global_step, duration(seconds, decimals=0), rate,
            )  # fmt: skip
        return not diverged

    def _loop_settings(self) -> LoopSettings:
        config = self.run.config
        has_held_out = self.run.data[self.index].manifest.totals("valid").rows > 0
        return LoopSettings(
            phase=self.config.name,
            total_steps=self.config.total_steps,
            train_batch_size=self.parts.batch.train_batch_size,
            learning_rate_at=functools.partial(
                learning_rate_at,
                self.config.schedule,
                self.parts.peak_learning_rate,
                total_steps=self.config.total_steps,
            ),
            checkpoint_every=config.checkpoint.every_steps,
            log_every=config.logging.every_steps,
            evaluate_every=config.evaluation.every_steps if has_held_out else None,
            dropout_key=(config.seed, self.index),
            device=self.run.device,
        )

    def progress(self, what: str) -> None:
        """Note for the watchdog what begins now."""
        self.run.watchdog.progress(what)

    def evaluate(self) -> EvaluationOutcome:
        """Evaluate the present weights, log the result and decide what follows from it."""
        run, phase, state = self.run, self.config, self.state
        started = time.perf_counter()
        result = evaluate_held_out(
            run.config,
            run.data[self.index],
            self.model,
            run.comm,
            self.parts.engine,
            lambda number: self.progress(
                f"{phase.name}, after update {state.global_step}: evaluating batch {number}"
            ),
        )
        is_best = is_reached = False
        if run.is_main:
            former = run.folder.evaluations_of(phase.name)
            term, figures = PRETRAINING.leading, result.figures
            losses = [row[term.loss] for row in former if row[term.loss] is not None]
            loss, accuracy = figures[term.loss], figures[term.accuracy]
            if loss is not None and math.isfinite(loss):
                is_best = loss < min(losses, default=inf)
            if phase.target_accuracy is not None and accuracy is not None:
                is_reached = accuracy >= phase.target_accuracy
            seconds = time.perf_counter() - started
            self.meter.add_evaluation(
                {"phase": phase.name, **vars(state), **result.as_dict(), "evaluation_s": seconds}
            )
            if is_reached:
                log.info(
                    "%s ends at update %d: its target, a held-out %s accuracy of %g, is reached",
                    phase.name, state.global_step, term.label, phase.target_accuracy,
                )  # fmt: skip
        flags = run.comm.all_reduce_ints(
            [int(is_best and run.config.checkpoint.keep_best), is_reached]
        )
        return EvaluationOutcome(*(bool(flag) for flag in flags))

    def save(self, *, is_phase_end: bool, is_best: bool) -> None:
        """Have rank 0 write a checkpoint of the present state; all ranks call it together.

        Args:
            is_phase_end: whether the phase is complete.
            is_best: whether the held-out result is the best of the phase so far.
        """
        run, phase, state, engine = self.run, self.config, self.state, self.parts.engine
        manifest = run.data[self.index].manifest
        described = CheckpointState(
            phase=phase.name,
            phase_index=self.index,
            **vars(state),
            is_phase_end=is_phase_end,
            optimizer_step=optimizer_step(engine.optimizer),
            loss_scaler=engine.scaler_state(),
            dataset_fingerprint=manifest.fingerprint,
            vocabulary_sha256=manifest.vocabulary.sha256,
            world_size=run.world.world_size,
            zero_stage=phase.deepspeed.zero_stage,
            precision=phase.deepspeed.precision,
            versions=setup.package_versions(),
        )
        weights, moments = tensors_of(engine)

        def submit() -> None:
            if run.is_main:
                self.writer.submit(described, weights, moments, is_best=is_best)

        run.comm.run_on_all_ranks(submit)

    def _roll_back_or_raise(self, cause: str) -> None:
        """Make an earlier checkpoint the newest one if that is configured; else raise the error."""
        run, config = self.run, self.run.config.divergence

        def choose() -> bool:
            if not run.is_main or not may_roll_back(run.folder, config):
                return False
            former = roll_back(run.folder, config, self.index, self.state, cause)
            if former is not None:
                drop_rows_after(run, former)
            return former is not None

        if not run.comm.any_rank(run.comm.run_on_all_ranks(choose)):
            raise DivergedError(cause)

    def _raise_stop(self) -> None:
        name, step = self.config.name, self.state.global_step
        if self.run.is_main:
            self.run.folder.update_summary(status="interrupted")
            log.info("stopped in %s at update %d", name, step)
        raise StopRequested(
            f"stopped on request in {name} after update {step}; the state is saved. Run the same "
            "command (with --resume auto, the default) to resume from there"
        )


def model_with_weights(run: Run, checkpoint: Checkpoint | None) -> PretrainingModel:
    """Build the model with a checkpoint's weights or, without one, with the run's initial ones."""
    model = setup.build_model(run.config, run.device)
    if checkpoint is not None:
        load_weights(model, checkpoint)
    elif run.config.init_from is not None:
        load_init_from(model, run.config.init_from, run.is_main)
    return model


def _restore_state(
    run: Run, phase_index: int, parts: setup.PhaseSetup, checkpoint: Checkpoint | None
) -> TrainState:
    """Load weights and optimizer state into the phase's engine; return the counters to start from.

    Args:
        run: the run, opened and checked.
        phase_index: number of the phase in the recipe, from 0.
        parts: the phase's engine and stream.
        checkpoint: one of this phase or of the end of the phase before; None for the start of the
            run.
    """
    phase = run.config.phases[phase_index]
    if checkpoint is None:
        return TrainState()
    parts.engine.load_master_weights(checkpoint.weights)
    is_same_phase = checkpoint.state.phase_index == phase_index
    if is_same_phase or phase.moments == "carry":
        load_optimizer_tensors(
            parts.engine.optimizer,
            checkpoint.optimizer,
            step=checkpoint.state.optimizer_step if is_same_phase else 0,
        )
    if not is_same_phase:
        return TrainState()
    saved = checkpoint.state
    parts.engine.load_scaler_state(saved.loss_scaler)
    if run.is_main:
        log.info("resuming from %s", checkpoint.path)
    return TrainState(saved.global_step, saved.skipped_steps, saved.samples_seen, saved.tokens_seen)


def _open_sinks(run: Run, phase_index: int, state: TrainState) -> list[Sink]:
    if not run.is_main:
        return []
    phase = run.config.phases[phase_index]
    samples_before = _samples_before(run.config, phase_index)
    folder = run.folder.path / "tensorboard"
    return [
        JsonLinesSink(run.folder.metrics, run.folder.evaluations),
        TensorBoardSink(folder, phase.name, samples_before, state.samples_seen),
        ProgressSink(
            phase.name,
            phase.total_steps,
            state.global_step,
            sys.stderr,
            later_work=_later_work(run, phase_index),
            skipped_steps=state.skipped_steps,
        ),
    ]


def _later_work(run: Run, phase_index: int) -> float:
    """Return the FLOPs of the phases after this one, as a multiple of those of this one."""
    flops = [
        setup.expected_flops(run.config.model, phase, data.manifest)
        for phase, data in zip(run.config.phases, run.data, strict=True)
    ]
    return sum(flops[phase_index + 1 :]) / flops[phase_index]


def _samples_before(config: RunConfig, phase_index: int) -> int:
    """Return the rows of the phases before this one, each of which has made all its updates."""
    return sum(
        earlier.total_steps * earlier.deepspeed.train_batch_size
        for earlier in config.phases[:phase_index]
    )
