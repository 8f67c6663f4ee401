"""The objects that all phases of a run share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bert_ds.checkpoint import pointers
from bert_ds.checkpoint.content import CheckpointState
from bert_ds.config.recipe import RunConfig
from bert_ds.distributed.communicator import Communicator
from bert_ds.distributed.world import World
from bert_ds.metrics.meter import MetricsRow
from bert_ds.metrics.sinks import keep_rows
from bert_ds.train import setup
from bert_ds.train.run_folder import RunFolder
from bert_ds.train.stop import StopFlag
from bert_ds.train.watchdog import Watchdog


@dataclass
class Run:
    """A run that has started: ranks connected, folder claimed, datasets opened."""

    config: RunConfig
    """All settings, checked."""
    world: World
    """This rank among the others."""
    comm: Communicator
    """Reductions and broadcasts over the ranks."""
    device: torch.device
    """Where this rank computes."""
    folder: RunFolder
    """The run folder, which rank 0 writes to."""
    data: list[setup.PhaseData]
    """The dataset of each phase."""
    stop: StopFlag
    """Whether this rank was asked to stop."""
    watchdog: Watchdog
    """Ends this rank if it makes no progress."""
    origin: dict[str, Any]
    """How the run was started; kept next to the settings in config.json."""
    data_may_differ: bool = False
    """Whether a checkpoint may resume with another dataset of the same vocabulary."""

    @property
    def is_main(self) -> bool:
        """Whether this rank writes files and logs."""
        return self.world.is_main


def latest_checkpoint(run: Run) -> Path:
    """Return the folder of the checkpoint that was just written, on all ranks."""
    name = ""
    if run.is_main:
        path = pointers.latest(run.folder.checkpoints)
        assert path is not None, "a phase ends with a checkpoint"
        name = path.name
    return run.folder.checkpoints / run.comm.broadcast_text(name)


def drop_rows_after(run: Run, state: CheckpointState | None) -> None:
    """Remove the metrics of updates after a checkpoint: they will be made again.

    Args:
        run: the run; only rank 0 calls this.
        state: state of the checkpoint; None removes the metrics of all updates.
    """
    earlier = {phase.name for phase in run.config.phases[: state.phase_index if state else 0]}

    def is_kept(row: MetricsRow) -> bool:
        if state is None:
            return False
        if row["phase"] == state.phase:
            until = state.samples_seen if state.rows_until is None else state.rows_until
            return bool(row["samples_seen"] <= until)
        return row["phase"] in earlier

    keep_rows(run.folder.metrics, is_kept)
    keep_rows(run.folder.evaluations, is_kept)
