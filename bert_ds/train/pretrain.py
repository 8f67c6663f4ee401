"""One run over all phases: from where it stands to the held-out result.

Each phase gets an engine of its own. What passes from one to the next passes through the checkpoint
at the phase's end, also in a run that is never interrupted, so that both ways are one.
"""

from __future__ import annotations

import logging
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bert_ds.checkpoint import (
    Checkpoint,
    CheckpointState,
    check_files,
    check_weights_fit,
    load_checkpoint,
    load_weights,
    newest_checkpoint,
)
from bert_ds.config.recipe import RunConfig
from bert_ds.data.stream import Prefetcher
from bert_ds.dist import Communicator
from bert_ds.engine import TrainEngine
from bert_ds.errors import CheckpointError, DivergedError, StopRequested
from bert_ds.metrics.meter import Meter, MetricsRow, Sink
from bert_ds.metrics.sinks import (
    JsonLinesSink,
    ProgressSink,
    TensorBoardSink,
    duration_text,
    keep_rows,
)
from bert_ds.model import BertForPreTraining
from bert_ds.optim import learning_rate_at
from bert_ds.optim.state import load_optimizer_tensors, optimizer_step
from bert_ds.train import setup
from bert_ds.train.evaluate import HeldOutResult, evaluate
from bert_ds.train.initial import load_init_from
from bert_ds.train.loop import LoopSettings, Verdict, train
from bert_ds.train.rollback import may_roll_back, roll_back
from bert_ds.train.run_folder import RunFolder
from bert_ds.train.state import TrainState
from bert_ds.train.stop import StopFlag
from bert_ds.train.summary import phase_entries
from bert_ds.train.watchdog import Watchdog
from bert_ds.train.writer import CheckpointWriter, tensors_of
from bert_ds.world import World

log = logging.getLogger(__name__)


@dataclass
class Run:
    """What all phases of a run share.

    `origin` says how the run was started; it is kept beside the settings.
    """

    config: RunConfig
    world: World
    comm: Communicator
    device: torch.device
    folder: RunFolder
    data: list[setup.PhaseData]
    stop: StopFlag
    watchdog: Watchdog
    origin: dict[str, Any]

    @property
    def is_main(self) -> bool:
        """Whether this rank writes and talks."""
        return self.world.is_main


def run_pretraining(run: Run, resume: str) -> None:
    """Train the phases that are not complete, then evaluate, then write the summary.

    Args:
        run: opened and checked.
        resume: `auto`, `never`, or the path of a checkpoint.

    Raises:
        StopRequested: a signal ended training at an update boundary; its state is saved.
    """
    checkpoint = _find_checkpoint(run, resume)
    last = run.data[-1]
    if run.is_main and not last.manifest.totals("valid").rows:
        log.warning("%s has no held-out rows: there will be no held-out result", last.folder)
    if run.is_main:  # from here on the folder is written: all that can be refused has been
        run.folder.write_config(run.config, run.origin)
        data = run.data[0]
        run.folder.keep_vocabulary(data.vocabulary, asdict(data.manifest.vocabulary))
        _write_summary_head(run, "running")
        _drop_rows_after(run, checkpoint.state if checkpoint else None)
    first = 0
    if checkpoint is not None:
        first = checkpoint.state.phase_index + int(checkpoint.state.is_phase_end)
    with run.stop, run.watchdog:
        for phase_index in range(first, len(run.config.phases)):
            _run_phase(run, phase_index, checkpoint)
            checkpoint = load_checkpoint(_newest(run))
    # A signal from here on ends the process at once: all that training made is saved.
    result = None
    if run.data[-1].manifest.totals("valid").rows:
        model = _model_of(run, checkpoint)
        if run.is_main:
            log.info("evaluating on held-out rows of %s", run.data[-1].folder)
        result = evaluate_held_out(run.config, run.data[-1], model, run.comm).as_dict()
    if run.is_main:
        phases = phase_entries(run.config, run.folder.metrics)
        run.folder.update_summary(phases=phases, held_out=result, status="complete")


def evaluate_held_out(
    config: RunConfig,
    data: setup.PhaseData,
    model: BertForPreTraining,
    comm: Communicator,
    engine: TrainEngine | None = None,
) -> HeldOutResult:
    """Evaluate on the held-out rows of a dataset, on all ranks together.

    Args:
        config: settings of the run.
        data: the dataset.
        model: what is evaluated.
        comm: the ranks.
        engine: the engine that has taken the model, where one has.
    """
    reader, masks = setup.open_held_out(config, data)
    with ExitStack() as stack:
        stack.callback(reader.close)
        return evaluate(
            model,
            reader,
            data.manifest,
            masks,
            micro_batch_size=config.evaluation.micro_batch_size,
            max_sequences=config.evaluation.max_sequences,
            rank=comm.world.rank,
            world_size=comm.world.world_size,
            device=comm.device,
            sum_over_ranks=comm.sum_tensor,
            layout=config.execution.batch_layout,
            forward=stack.enter_context(engine.evaluating()) if engine else None,
            is_partitioned=engine is not None and engine.is_partitioned,
        )


def _run_phase(run: Run, phase_index: int, checkpoint: Checkpoint | None) -> None:
    """Train one phase to its end, from the checkpoint or, without one, from nothing.

    The model is built anew: what an engine makes of one (half precision, flat buffers, partitions)
    ends with the phase.
    """
    phase, data = run.config.phases[phase_index], run.data[phase_index]
    run.watchdog.doing(f"{phase.name}: building the model and its engine")
    model = _model_of(run, checkpoint)
    parts = setup.build_phase(run.config, phase_index, model, data, run.world)
    state = _enter_phase(run, phase_index, parts, checkpoint)
    has_held_out = data.manifest.totals("valid").rows > 0
    settings = LoopSettings(
        phase=phase.name,
        total_steps=phase.total_steps,
        train_batch_size=parts.batch.train_batch_size,
        checkpoint_every=run.config.checkpoint.every_steps,
        log_every=run.config.logging.every_steps,
        evaluate_every=run.config.evaluation.every_steps if has_held_out else None,
        dropout_key=(run.config.seed, phase_index),
        device=run.device,
    )
    diverged: DivergedError | None = None
    started, started_samples = time.monotonic(), state.samples_seen
    sinks = _open_sinks(run, phase_index, state)
    by_layer = run.config.logging.norms_by_layer
    speed = setup.speed_of(run.config, phase, run.world, run.device)
    meter = Meter(phase.name, run.comm.sum_tensor, sinks, norms_by_layer=by_layer, speed=speed)
    updates = Prefetcher(parts.stream.updates(state.samples_seen))
    writer = CheckpointWriter(run.folder.checkpoints, run.config.checkpoint)
    try:
        is_complete = train(
            parts.engine,
            updates,
            state,
            settings,
            meter,
            learning_rate_at=lambda step: learning_rate_at(
                phase.schedule, parts.peak_learning_rate, step, phase.total_steps
            ),
            sum_over_ranks=run.comm.sum_numbers,
            max_over_ranks=run.comm.max_number,
            stop_requested=lambda: run.stop.is_set or writer.has_failed,
            evaluate=lambda: _evaluate_and_judge(
                run, phase_index, model, parts.engine, state, meter
            ),
            save=lambda is_end, is_best: _save(
                run, phase_index, parts, state, writer, is_phase_end=is_end, is_best=is_best
            ),
            doing=run.watchdog.doing,
        )
        run.comm.together(writer.wait)
    except DivergedError as err:
        run.comm.together(writer.wait)
        diverged = err
        is_complete = False
    finally:
        parts.stream.close()
        updates.close()
        for sink in sinks:
            sink.close()
    seconds = time.monotonic() - started
    if run.is_main:
        run.folder.update_summary(phases=phase_entries(run.config, run.folder.metrics))
    parts.engine.destroy()
    if diverged is not None:
        _go_back(run, phase_index, state, diverged)
        _run_phase(run, phase_index, load_checkpoint(_newest(run)))
        return
    if not is_complete:
        _write_stop(run, phase.name, state)
        raise StopRequested(
            f"stopped on request in {phase.name} after update {state.global_step}; the state is "
            "saved, the same command (with --resume auto, the default) goes on from there"
        )
    if run.is_main:
        rate = (state.samples_seen - started_samples) / max(seconds, 1e-9)
        log.info(
            "%s complete: %d updates, %s, %.0f sequences/s",
            phase.name, state.global_step, duration_text(seconds), rate,
        )  # fmt: skip


def _go_back(run: Run, phase_index: int, state: TrainState, diverged: DivergedError) -> None:
    """Make an earlier checkpoint the newest where that is asked for; else raise the error."""
    config = run.config.divergence

    def choose() -> bool:
        if not run.is_main or not may_roll_back(run.folder, config):
            return False
        former = roll_back(run.folder, config, phase_index, state, str(diverged))
        if former is not None:
            _drop_rows_after(run, former.state)
        return former is not None

    if not run.comm.any(run.comm.together(choose)):
        raise diverged


def _model_of(run: Run, checkpoint: Checkpoint | None) -> BertForPreTraining:
    """A model with the checkpoint's weights or, without one, with those it begins with."""
    model = setup.build_model(run.config, run.device)
    if checkpoint is not None:
        load_weights(model, checkpoint)
    elif run.config.init_from is not None:
        load_init_from(model, run.config.init_from, run.is_main)
    return model


def _enter_phase(
    run: Run, phase_index: int, parts: setup.PhaseSetup, checkpoint: Checkpoint | None
) -> TrainState:
    """Load the optimizer's state for this phase; returns the counters to start from."""
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
        log.info("going on from %s", checkpoint.path)
    return TrainState(saved.global_step, saved.skipped_steps, saved.samples_seen, saved.tokens_seen)


def _evaluate_and_judge(
    run: Run,
    phase_index: int,
    model: BertForPreTraining,
    engine: TrainEngine,
    state: TrainState,
    meter: Meter,
) -> Verdict:
    """Evaluate during training, and say what follows from it."""
    phase = run.config.phases[phase_index]
    started = time.perf_counter()
    result = evaluate_held_out(run.config, run.data[phase_index], model, run.comm, engine)
    is_best = is_reached = False
    if run.is_main:
        former = run.folder.evaluations_of(phase.name)
        is_best = all(result.mlm_loss < row["mlm_loss"] for row in former)
        target = phase.target_mlm_accuracy
        is_reached = target is not None and result.mlm_accuracy >= target
        seconds = time.perf_counter() - started
        meter.add_evaluation(
            {"phase": phase.name, **vars(state), **result.as_dict(), "evaluation_s": seconds}
        )
        if is_reached:
            log.info(
                "%s ends at update %d: its target, a held-out MLM accuracy of %g, is reached",
                phase.name,
                state.global_step,
                target,
            )
    flags = run.comm.sum_numbers([int(is_best and run.config.checkpoint.keep_best), is_reached])
    return Verdict(*(bool(flag) for flag in flags))


def _save(
    run: Run,
    phase_index: int,
    parts: setup.PhaseSetup,
    state: TrainState,
    writer: CheckpointWriter,
    *,
    is_phase_end: bool,
    is_best: bool,
) -> None:
    """Have a checkpoint of the present state written; every rank comes here, rank 0 writes."""
    manifest = run.data[phase_index].manifest
    phase = run.config.phases[phase_index]
    stage, precision = setup.layout_of(phase)
    described = CheckpointState(
        phase=phase.name,
        phase_index=phase_index,
        **vars(state),
        is_phase_end=is_phase_end,
        optimizer_step=optimizer_step(parts.engine.optimizer),
        loss_scaler=parts.engine.scaler_state(),
        dataset_fingerprint=manifest.fingerprint,
        vocabulary_sha256=manifest.vocabulary.sha256,
        world_size=run.world.world_size,
        zero_stage=stage,
        precision=precision,
        versions=setup.package_versions(),
    )
    weights, moments = tensors_of(parts.engine)

    def submit() -> None:
        if run.is_main:
            writer.submit(described, weights, moments, is_best=is_best)

    run.comm.together(submit)


def _find_checkpoint(run: Run, resume: str) -> Checkpoint | None:
    """The checkpoint to go on from, the same on every rank, or None for a fresh start."""
    found = run.comm.together(lambda: _choose(run, resume) if run.is_main else "")
    path = run.comm.broadcast_text(found)
    if not path:
        return None
    checkpoint = run.comm.together(lambda: load_checkpoint(Path(path)))
    run.comm.together(lambda: _check_fits(run, checkpoint))
    return checkpoint


def _choose(run: Run, resume: str) -> str:
    if resume == "never":
        return ""
    if resume != "auto":
        check_files(Path(resume))
        return resume
    path, complaints = newest_checkpoint(run.folder.checkpoints)
    for complaint in complaints:
        log.warning("%s", complaint)
    return str(path) if path else ""


def _newest(run: Run) -> Path:
    """The checkpoint that was just written, on every rank."""
    text = ""
    if run.is_main:
        text = (run.folder.checkpoints / "latest").read_text().strip()
    return run.folder.checkpoints / run.comm.broadcast_text(text)


def _check_fits(run: Run, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint of other data or of another recipe.

    Raises:
        CheckpointError: names both values.
    """
    state = checkpoint.state
    names = [phase.name for phase in run.config.phases]
    if state.phase_index >= len(names) or names[state.phase_index] != state.phase:
        raise CheckpointError(
            f"{checkpoint.path} was written in phase {state.phase} (number {state.phase_index}), "
            f"the recipe's phases are {', '.join(names)}"
        )
    with torch.device("meta"):  # names and shapes, no memory
        check_weights_fit(BertForPreTraining(run.config.model), checkpoint)
    manifest = run.data[state.phase_index].manifest
    for what, saved, present in (
        ("vocabulary", state.vocabulary_sha256, manifest.vocabulary.sha256),
        ("dataset", state.dataset_fingerprint, manifest.fingerprint),
    ):
        if saved != present:
            raise CheckpointError(
                f"{checkpoint.path} was trained on {what} {saved[:12]}, and "
                f"{run.data[state.phase_index].folder} holds {present[:12]}; give the run the data "
                "that it began with, or start another run in another --output-dir"
            )


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
        ),
    ]


def _later_work(run: Run, phase_index: int) -> float:
    """FLOPs of the phases after this one by those of this one."""
    flops = [
        setup.expected_flops(run.config.model, phase, data.manifest)
        for phase, data in zip(run.config.phases, run.data, strict=True)
    ]
    return sum(flops[phase_index + 1 :]) / flops[phase_index]


def _samples_before(config: RunConfig, phase_index: int) -> int:
    """Rows of the phases before this one, where each has all its updates."""
    return sum(
        earlier.total_steps * earlier.deepspeed["train_batch_size"]
        for earlier in config.phases[:phase_index]
    )


def _drop_rows_after(run: Run, state: CheckpointState | None) -> None:
    """Remove logged updates that the checkpoint does not know: they will be done again."""
    earlier = {phase.name for phase in run.config.phases[: state.phase_index if state else 0]}

    def is_kept(row: MetricsRow) -> bool:
        if state is None:
            return False
        if row["phase"] == state.phase:
            return bool(row["samples_seen"] <= state.samples_seen)
        return row["phase"] in earlier

    keep_rows(run.folder.metrics, is_kept)
    keep_rows(run.folder.evaluations, is_kept)


def _write_summary_head(run: Run, status: str) -> None:
    stage, precision = setup.layout_of(run.config.phases[0])
    former = run.folder.read_summary()
    run.folder.update_summary(
        recipe=run.config.recipe,
        status=status,
        world_size=run.world.world_size,
        zero_stage=stage,
        precision=precision,
        phases=former.get("phases", []),
        held_out=former.get("held_out"),
        export=former.get("export"),
        dataset={entry.folder.name: str(entry.folder) for entry in run.data},
        versions=setup.package_versions(),
    )


def _write_stop(run: Run, phase: str, state: TrainState) -> None:
    if run.is_main:
        run.folder.update_summary(status="interrupted")
        log.info("stopped in %s at update %d", phase, state.global_step)
