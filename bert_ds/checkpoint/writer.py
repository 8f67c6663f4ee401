"""The thread that writes checkpoints while training continues with the next updates.

What makes this hard: training changes weights and moments in place, so the thread must be given
tensors that nothing else writes to (`tensors_of` copies them; `submit` must not be given others),
and at most one checkpoint is written at a time, since each holds a second copy of the model. The
thread hands back nothing but `_failure`. The main thread reads that after `join`; `has_failed`
reads it before, and may see a failure one look late.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import torch

from bert_ds.checkpoint.content import CheckpointState
from bert_ds.checkpoint.store import remove_old_checkpoints, save_checkpoint
from bert_ds.config.recipe import CheckpointConfig
from bert_ds.engine import TrainEngine
from bert_ds.optim.state import optimizer_tensors

log = logging.getLogger(__name__)


def tensors_of(engine: TrainEngine) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return weights and moments to be saved, on the CPU, as copies that do not change any more.

    All ranks call it together; the first gets all of them, the others get their own parts.
    """
    weights, moments = engine.weights(), optimizer_tensors(engine.optimizer)
    if engine.optimizer.layout.is_sharded:  # put together for this
        return weights, moments
    copied = (
        {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        for tensors in (weights, moments)
    )
    return next(copied), next(copied)


class CheckpointWriter:
    """A writer of one checkpoint at a time, on the rank that owns the run folder.

    A failure is raised by the next `submit` or `wait`; `has_failed` shows it before.
    """

    def __init__(self, folder: Path, config: CheckpointConfig) -> None:
        """Write nothing yet; `folder` holds the checkpoints, `config` decides which stay."""
        self._folder = folder
        self._config = config
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the last checkpoint could not be written."""
        return self._failure is not None

    def submit(
        self,
        state: CheckpointState,
        weights: dict[str, torch.Tensor],
        moments: dict[str, torch.Tensor],
        *,
        is_best: bool,
    ) -> None:
        """Begin to write a checkpoint, once the former one is written.

        Args:
            state: everything in it besides the tensors.
            weights: float32 by parameter name, on the CPU; they must not change any more.
            moments: the optimizer's moments, likewise.
            is_best: whether it is the best of its phase.

        Raises:
            CheckpointError: the former one could not be written.
        """
        self.wait()
        self._thread = threading.Thread(
            target=self._write, args=(state, weights, moments, is_best), name="checkpoint"
        )
        self._thread.start()

    def wait(self) -> None:
        """Return when everything that was submitted is on the disk.

        Raises:
            CheckpointError: it could not be written.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _write(
        self,
        state: CheckpointState,
        weights: dict[str, torch.Tensor],
        moments: dict[str, torch.Tensor],
        is_best: bool,
    ) -> None:
        started = time.monotonic()
        try:
            path = save_checkpoint(self._folder, state, weights, moments, is_best=is_best)
            remove_old_checkpoints(
                self._folder, self._config.keep_last, self._config.keep_every_steps
            )
        except BaseException as err:  # raised again in the main thread
            self._failure = err
        else:
            log.debug("wrote %s in %.1f s", path, time.monotonic() - started)
