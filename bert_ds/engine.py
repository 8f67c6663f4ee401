"""The DeepSpeed engine behind the few calls that training makes of it.

The only module (with `checkpoint` and `optim.zero_layout`) that imports deepspeed. Losses come in
as sums and leave as gradients of the loss of the *global* batch: DeepSpeed averages gradients over
ranks, so a micro batch's loss is multiplied by the world size before, and its own division by the
accumulation steps is switched off.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

from bert_ds.batch import PretrainingBatch
from bert_ds.dist import World
from bert_ds.model import BertForPreTraining, PretrainingOutput
from bert_ds.optim.lamb import Lamb


class TrainEngine:
    """One phase's DeepSpeed engine.

    A caller computes each micro batch with `micro_step`, as many as the accumulation asks for; the
    last of them applies the update.
    """

    def __init__(
        self,
        model: BertForPreTraining,
        optimizer: Lamb,
        deepspeed_config: dict[str, Any],
        world: World,
    ) -> None:
        """Wrap model and optimizer.

        Args:
            model: on its device, the same weights on every rank.
            optimizer: over the model's parameters.
            deepspeed_config: as made by `config.deepspeed.deepspeed_config`.
            world: this rank; torch.distributed is initialised.
        """
        deepspeed = import_deepspeed()
        self.model = model
        self.optimizer = optimizer
        self._world_size = world.world_size
        self._engine, *_ = deepspeed.initialize(
            model=model, optimizer=optimizer, config=deepspeed_config, dist_init_required=False
        )
        self._engine.train()

    def micro_step(
        self, batch: PretrainingBatch, num_predictions: int, num_sequences: int
    ) -> PretrainingOutput:
        """Forward and backward of one micro batch; after the last one of an update, the update.

        Args:
            batch: the micro batch, on the engine's device.
            num_predictions: masked positions of the whole update, all ranks.
            num_sequences: rows of the whole update, all ranks.

        Returns:
            The micro batch's sums, detached, still on the device.
        """
        output: PretrainingOutput = self._engine(batch)
        loss = output.mlm_loss_sum / max(num_predictions, 1) + output.nsp_loss_sum / num_sequences
        self._engine.backward(loss * self._world_size, scale_wrt_gas=False)
        self._engine.step()
        return PretrainingOutput(*(value.detach() for value in output))

    def set_learning_rate(self, learning_rate: float) -> None:
        """Learning rate of the next update, for all parameter groups."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate

    @property
    def was_update_applied(self) -> bool:
        """Whether the last update moved the weights; False after an overflow under fp16."""
        return bool(self._engine.was_step_applied())

    @property
    def loss_scale(self) -> float | None:
        """The loss scale of fp16, or None where there is none."""
        optimizer = self._engine.optimizer
        return float(optimizer.cur_scale) if hasattr(optimizer, "cur_scale") else None

    def grad_norm(self) -> torch.Tensor | None:
        """Global gradient norm of the last update before clipping; scalar on the device."""
        return self.optimizer.last_grad_norm()

    def destroy(self) -> None:
        """Release what DeepSpeed holds, so that another engine can take the same model."""
        self._engine.destroy()
        del self._engine


def import_deepspeed() -> Any:
    """Import DeepSpeed, quiet, and without its wish to compile at the first start.

    On CPUs DeepSpeed 0.19.8 builds a shared-memory collective when a process group is wrapped
    (40 to 70 seconds, needs a C++ compiler, leaves files in /dev/shm). Training never calls it: it
    serves inference alone. So it is marked as not available.
    """
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.utils.logger.setLevel(logging.WARNING)
    return deepspeed
