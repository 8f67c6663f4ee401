"""One run over all phases, from its last checkpoint to the held-out result.

Each phase has its own engine. One phase hands its weights to the next through the checkpoint at its
end, even if the run is never interrupted: resumed and uninterrupted runs take the same path.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path

import torch

from bert_ds.checkpoint.content import (
    Checkpoint,
    CheckpointState,
    check_files,
    check_weights_fit,
    load_checkpoint,
)
from bert_ds.checkpoint.store import newest_checkpoint
from bert_ds.errors import CheckpointError, as_wrong_settings
from bert_ds.model.families import family_of
from bert_ds.train import setup
from bert_ds.train.evaluate import evaluate_held_out
from bert_ds.train.phase import model_with_weights, run_phase
from bert_ds.train.run import Run, drop_rows_after, latest_checkpoint
from bert_ds.train.summary import phase_entries

log = logging.getLogger(__name__)


def run_pretraining(run: Run, resume: str) -> None:
    """Train the phases that are not complete, then evaluate, then write the summary.

    Args:
        run: the run, opened and checked.
        resume: `auto`, `never`, or the path of a checkpoint.

    Raises:
        StopRequested: a request ended training between two updates; the state is saved.
    """
    path, state = _find_checkpoint(run, resume)
    if run.is_main:  # all checks are done: from here on the folder is written to
        run.folder.write_config(run.config, run.origin)
        data = run.data[0]
        run.folder.keep_vocabulary(data.vocabulary, asdict(data.manifest.vocabulary))
        _write_summary_head(run, "running")
        drop_rows_after(run, state)
    first = 0 if state is None else state.phase_index + int(state.is_phase_end)
    with run.stop, run.watchdog:
        for phase_index in range(first, len(run.config.phases)):
            run_phase(run, phase_index, path)
            path = latest_checkpoint(run)
    # From here on a signal ends the process immediately: all that training has made is saved.
    result = None
    if run.data[-1].manifest.totals("valid").rows:
        if run.is_main:
            log.info("evaluating on held-out rows of %s", run.data[-1].folder)
        checkpoint = load_checkpoint(path, with_optimizer=False) if path else None
        model = model_with_weights(run, checkpoint)
        held_out = evaluate_held_out(run.config, run.data[-1], model, run.comm)
        result = held_out.as_dict()
        if run.is_main:
            log.info("held-out %s", held_out.as_text())
    if run.is_main:
        phases = phase_entries(run.config, run.folder.metrics)
        run.folder.update_summary(phases=phases, held_out=result, status="complete")


def _find_checkpoint(run: Run, resume: str) -> tuple[Path | None, CheckpointState | None]:
    """Return the checkpoint to resume from and its state, equal on all ranks; or None and None."""
    found = run.comm.run_on_all_ranks(lambda: _choose(run, resume) if run.is_main else "")
    path = run.comm.broadcast_text(found)
    if not path:
        return None, None
    checkpoint = run.comm.run_on_all_ranks(lambda: load_checkpoint(Path(path)))
    run.comm.run_on_all_ranks(as_wrong_settings()(lambda: _check_fits(run, checkpoint)))
    return checkpoint.path, checkpoint.state


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


def _check_fits(run: Run, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint of other data or of another recipe.

    Raises:
        CheckpointError: something differs; the message names both values.
    """
    state = checkpoint.state
    names = [phase.name for phase in run.config.phases]
    if state.phase_index >= len(names) or names[state.phase_index] != state.phase:
        raise CheckpointError(
            f"{checkpoint.path} was written in phase {state.phase} (number {state.phase_index}), "
            f"the recipe's phases are {', '.join(names)}"
        )
    with torch.device("meta"):  # names and shapes, no memory
        check_weights_fit(family_of(run.config.model).build(run.config.model), checkpoint)
    manifest = run.data[state.phase_index].manifest
    for what, saved, present in (
        ("vocabulary", state.vocabulary_sha256, manifest.vocabulary.sha256),
        ("dataset", state.dataset_fingerprint, manifest.fingerprint),
    ):
        if saved == present:
            continue
        mismatch = (
            f"{checkpoint.path} was trained on {what} {saved[:12]}, and "
            f"{run.data[state.phase_index].folder} holds {present[:12]}"
        )
        if what == "dataset" and run.data_may_differ:
            log.warning("%s: continuing at the same place in its order (--override data)", mismatch)
            continue
        raise CheckpointError(
            f"{mismatch}; give the run the data that it began with, or start another run in "
            "another --output-dir"
            + ("; --override data continues with this one" if what == "dataset" else "")
        )


def _write_summary_head(run: Run, status: str) -> None:
    deepspeed = run.config.phases[0].deepspeed
    former = run.folder.read_summary()
    run.folder.update_summary(
        recipe=run.config.recipe,
        status=status,
        world_size=run.world.world_size,
        zero_stage=deepspeed.zero_stage,
        precision=deepspeed.precision,
        phases=former.get("phases", []),
        held_out=former.get("held_out"),
        export=former.get("export"),
        dataset={entry.folder.name: str(entry.folder) for entry in run.data},
        versions=setup.package_versions(),
    )
