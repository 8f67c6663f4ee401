"""What all phases of a run share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

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
    """What all phases of a run share.

    `origin` says how the run was started; it is kept beside the settings. `data_may_differ` lets a
    checkpoint go on with another dataset of the same vocabulary.
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
    data_may_differ: bool = False

    @property
    def is_main(self) -> bool:
        """Whether this rank writes and talks."""
        return self.world.is_main


def latest_checkpoint(run: Run) -> Path:
    """Return the folder of the checkpoint that was just written, on every rank."""
    text = ""
    if run.is_main:
        text = (run.folder.checkpoints / "latest").read_text().strip()
    return run.folder.checkpoints / run.comm.broadcast_text(text)


def drop_rows_after(run: Run, state: CheckpointState | None) -> None:
    """Remove logged updates that the checkpoint does not know: they will be done again."""
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
