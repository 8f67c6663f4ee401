"""Going back after a divergence: an earlier checkpoint goes on with the rows that come after it.

A divergence is often a batch that the model, at that moment, could not take. So the weights of some
checkpoints ago continue, and the rows from there to the divergence are left out.
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
    """Whether a divergence may be answered by going back once more."""
    done = folder.read_summary().get("rollbacks", [])
    return config.action == "rollback" and len(done) < config.max_rollbacks


def roll_back(
    folder: RunFolder, config: DivergenceConfig, phase_index: int, state: TrainState, cause: str
) -> CheckpointState | None:
    """Make an earlier checkpoint of the phase the newest one, at the present place in the data.

    Args:
        folder: of the run; only the rank that owns it calls this.
        config: how far back.
        phase_index: of the phase that has diverged.
        state: its counters at the divergence.
        cause: what was seen, for the log.

    Returns:
        What the checkpoint says as it is written now, or None where the phase has none yet.
    """
    found = [(path, load_state(path)) for path in whole_checkpoints(folder.checkpoints)]
    same = [(path, each) for path, each in found if each.phase_index == phase_index]
    if not same:
        return None
    # those ahead are what an earlier rollback, or a run that went back by hand, has left behind
    newest = min(same[0][1].global_step, state.global_step)
    behind: dict[int, Path] = {}  # a step once: a rollback writes the same weights anew
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
    folder.update_summary(rollbacks=done)  # first: a kill from here on counts it
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
