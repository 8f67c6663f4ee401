"""Rollback after a divergence: training resumes from earlier weights, with the rows that follow.

A divergence often comes from a batch that the model could not learn from at that moment. So
training continues with the weights of an earlier checkpoint, and the rows between that checkpoint
and the divergence are left out.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from bert_ds.checkpoint.content import CheckpointState, load_checkpoint, load_state
from bert_ds.checkpoint.store import save_checkpoint, whole_checkpoints
from bert_ds.config.recipe import DivergenceConfig
from bert_ds.train.run_folder import RunFolder
from bert_ds.train.state import TrainState

log = logging.getLogger(__name__)


def may_roll_back(folder: RunFolder, config: DivergenceConfig) -> bool:
    """Return whether the settings allow a rollback, or one more."""
    done = folder.read_summary().get("rollbacks", [])
    return config.action == "rollback" and len(done) < config.max_rollbacks


def roll_back(
    folder: RunFolder, config: DivergenceConfig, phase_index: int, state: TrainState, cause: str
) -> CheckpointState | None:
    """Make an earlier checkpoint of the phase the newest one, at the present place in the data.

    Args:
        folder: the run folder; only rank 0, which writes to it, calls this.
        config: settings, among them how far to go back.
        phase_index: number of the phase that has diverged.
        state: the phase's counters at the divergence.
        cause: message of the divergence, for the log.

    Returns:
        The state of the checkpoint that was written, or None if the phase has no checkpoint yet.
    """
    found = [(path, load_state(path)) for path in whole_checkpoints(folder.checkpoints)]
    same = [(path, each) for path, each in found if each.phase_index == phase_index]
    if not same:
        return None
    # Checkpoints with more steps are left from before an earlier rollback or a --resume PATH.
    newest = min(same[0][1].global_step, state.global_step)
    behind: dict[int, Path] = {}  # one path a step: a rollback writes the same weights again
    for path, each in same:
        if each.global_step <= newest and not each.is_phase_end:
            behind.setdefault(each.global_step, path)
    if not behind:
        return None
    chosen = load_checkpoint(list(behind.values())[: config.checkpoints_back][-1])
    entry: dict[str, Any] = {
        "phase": chosen.state.phase,
        "at_step": state.global_step,
        "to_step": chosen.state.global_step,
        "rows_left_out": [chosen.state.samples_seen, state.samples_seen],
        "cause": cause,
    }
    done = [*folder.read_summary().get("rollbacks", []), entry]
    folder.update_summary(rollbacks=done)  # first, so that it counts even if the process is killed
    until = chosen.state.rows_until
    moved = replace(
        chosen.state,
        samples_seen=state.samples_seen,
        tokens_seen=state.tokens_seen,
        rollbacks=len(done),
        rows_until=chosen.state.samples_seen if until is None else until,
    )
    save_checkpoint(folder.checkpoints, moved, chosen.weights, chosen.optimizer)
    log.warning(
        "%s. Going back to update %d of %s; the %d rows since are left out (rollback %d of %d)",
        cause, chosen.state.global_step, chosen.state.phase,
        state.samples_seen - chosen.state.samples_seen, len(done), config.max_rollbacks,
    )  # fmt: skip
    return moved
