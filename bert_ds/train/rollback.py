"""Going back after a divergence: an earlier checkpoint goes on with the rows that come after it.

A divergence is often a batch that the model, at that moment, could not take. So the weights of some
checkpoints ago continue, and the rows from there to the divergence are left out.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from bert_ds.checkpoint import (
    Checkpoint,
    load_checkpoint,
    load_state,
    save_checkpoint,
    whole_checkpoints,
)
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
) -> Checkpoint | None:
    """Make an earlier checkpoint of the phase the newest one, at the present place in the data.

    Args:
        folder: of the run; only the rank that owns it calls this.
        config: how far back.
        phase_index: of the phase that has diverged.
        state: its counters at the divergence.
        cause: what was seen, for the log.

    Returns:
        The checkpoint as it was written first, or None where the phase has none yet.
    """
    found = [(path, load_state(path)) for path in whole_checkpoints(folder.checkpoints)]
    steps = [(path, s.global_step) for path, s in found if s.phase_index == phase_index]
    if not steps:
        return None
    # those ahead of the newest are what an earlier rollback has left behind
    behind = [path for path, step in steps if step <= steps[0][1]]
    chosen = load_checkpoint(behind[: config.checkpoints_back][-1])
    moved = replace(chosen.state, samples_seen=state.samples_seen, tokens_seen=state.tokens_seen)
    save_checkpoint(folder.checkpoints, moved, chosen.weights, chosen.optimizer)
    entry: dict[str, Any] = {
        "phase": chosen.state.phase,
        "at_step": state.global_step,
        "to_step": chosen.state.global_step,
        "rows_left_out": [chosen.state.samples_seen, state.samples_seen],
        "cause": cause,
    }
    folder.update_summary(rollbacks=[*folder.read_summary().get("rollbacks", []), entry])
    log.warning(
        "%s. Going back to update %d of %s; the %d rows since are left out (rollback %d of %d)",
        cause, chosen.state.global_step, chosen.state.phase,
        state.samples_seen - chosen.state.samples_seen,
        len(folder.read_summary()["rollbacks"]), config.max_rollbacks,
    )  # fmt: skip
    return chosen
