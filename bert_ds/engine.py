"""The DeepSpeed engine behind the few calls that training makes; the only importer of deepspeed.

Hard here is the scale of the gradients. An update's gradient is that of the loss of the *global*
batch, sums divided by counts over all ranks. DeepSpeed averages gradients over the ranks, so a
micro batch's loss is multiplied by the world size first, and DeepSpeed's own division by the
accumulation steps is switched off. What must not change: every rank makes the same number of calls
of `micro_step` in an update and marks the same one as the last, since gradients are exchanged in
them.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bert_ds.batch import Batch
from bert_ds.distributed.world import World
from bert_ds.errors import ConfigError, DivergedError
from bert_ds.objectives import PRETRAINING, NumAnswers, Sums, TermSums
from bert_ds.optim.optimizer import LastNorms, RuleOptimizer
from bert_ds.optim.overflow import OverflowWatch
from bert_ds.optim.zero_layout import read_layout

_SCALER_KEYS = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


class TrainEngine:
    """One phase's DeepSpeed engine.

    A caller computes each micro batch with `micro_step`, at most `gradient_accumulation_steps` of
    them per update; the last one applies the update.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: RuleOptimizer,
        deepspeed_config: dict[str, Any],
        world: World,
        max_skipped_in_a_row: int = 40,
    ) -> None:
        """Wrap model and optimizer.

        Args:
            model: the model, on its device, with equal weights on all ranks.
            optimizer: the optimizer of the model's parameters.
            deepspeed_config: the result of `DeepSpeedConfig.for_engine`.
            world: this rank; torch.distributed is initialised.
            max_skipped_in_a_row: consecutive updates that may overflow under fp16.
        """
        deepspeed = import_deepspeed()
        self.model = model
        self.optimizer = optimizer
        self._world_size = world.world_size
        self._engine, *_ = deepspeed.initialize(
            model=model, optimizer=optimizer, config=deepspeed_config, dist_init_required=False
        )
        self._engine.train()
        if self._engine.zero_optimization():
            optimizer.bind(read_layout(self._engine.optimizer, model))
        self._watch: OverflowWatch | None = None
        if self._engine.fp16_enabled():
            fp16 = deepspeed_config["fp16"]
            is_dynamic = not fp16.get("loss_scale", 0)
            lowest_scale = float(fp16.get("min_loss_scale", 1)) if is_dynamic else 0.0
            self._watch = OverflowWatch(model, max_skipped_in_a_row, lowest_scale)

    def micro_step(self, batch: Batch, num_answers: NumAnswers, *, is_last: bool) -> Sums:
        """Compute forward and backward of a micro batch; the last one applies the update.

        Args:
            batch: the micro batch, on the engine's device.
            num_answers: answers of each term in the whole update, all ranks.
            is_last: whether it is the last one of the update; equal on all ranks.

        Returns:
            The micro batch's sums, detached, still on the device.

        Raises:
            DivergedError: under fp16 the gradients overflow at the lowest loss scale, or in too
                many updates in a row.
        """
        if self._watch is not None and self.loss_scale is not None:
            self._watch.before_backward(self.loss_scale)
        self._engine.set_gradient_accumulation_boundary(is_last)
        sums: Sums = self._engine(batch)
        loss = PRETRAINING.loss_of(sums, num_answers)
        self._engine.backward(loss * self._world_size, scale_wrt_gas=False)
        self._step(is_last)
        return {
            name: TermSums(each.loss_sum.detach(), each.num_correct) for name, each in sums.items()
        }

    def _step(self, is_last: bool) -> None:
        try:
            self._engine.step()
        except Exception as err:  # DeepSpeed 0.19.8 raises a plain Exception
            if "loss scale already at minimum" not in str(err):
                raise
            raise self._overflow_error("at the lowest loss scale (fp16.min_loss_scale)") from err
        if self._watch is not None and is_last:
            if self._watch.after_update(was_applied=self.was_update_applied):
                raise self._overflow_error("in as many updates as max_skipped_in_a_row allows")

    def _overflow_error(self, when: str) -> DivergedError:
        assert self._watch is not None
        return DivergedError(
            f"the gradients overflow {when}, loss scale {self.loss_scale:.12g}: "
            f"{self._watch.describe()}. The run has diverged, or the scale is far too high: start "
            "a run in another --output-dir with a lower optimizer.params.lr, a longer warm-up, a "
            "lower fp16.initial_scale_power or bf16; --resume PATH lets it begin from an earlier "
            "checkpoint of this one"
        )

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of the coming updates, for all parameter groups."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate

    @property
    def was_update_applied(self) -> bool:
        """Whether the last update moved the weights; equal on all ranks.

        DeepSpeed 0.19.8 skips an update whose gradients are not finite: under fp16, and in any
        precision at ZeRO 1 to 3 (in bf16 only at stage 3, unless `bf16.check_grad_overflow`).
        """
        return bool(self._engine.was_step_applied())

    @property
    def loss_scale(self) -> float | None:
        """Loss scale of fp16; None in other precisions."""
        return float(self._engine.optimizer.loss_scale) if self._engine.fp16_enabled() else None

    def grad_norm(self) -> torch.Tensor | None:
        """Return the last update's global gradient norm before clipping, a scalar on the device."""
        if not self.optimizer.layout.is_sharded:
            return self.optimizer.last_grad_norm()
        norm = self._engine.get_global_grad_norm()
        if norm is None:
            return None
        # DeepSpeed 0.19.8 returns a tensor on its device, or a float after a skipped update.
        return torch.as_tensor(norm, dtype=torch.float64, device=self._engine.device)

    def norms(self) -> LastNorms | None:
        """Return the last update's norms and trust ratios, on the device; None if skipped."""
        return self.optimizer.last_norms() if self.was_update_applied else None

    def weights(self) -> dict[str, torch.Tensor]:
        """Return float32 weights by parameter name; under ZeRO all ranks call, rank 0 gets them."""
        layout = self.optimizer.layout
        if not layout.is_sharded:
            return dict(self.model.named_parameters())
        return layout.gather({id(shard.tensor): shard.tensor.detach() for shard in layout.shards})

    def load_master_weights(self, weights: dict[str, torch.Tensor]) -> None:
        """Set ZeRO's float32 shards to weights of full precision.

        The engine made the shards from the model's weights, which are rounded under fp16 and bf16.
        """
        layout = self.optimizer.layout
        if layout.is_sharded:
            layout.scatter(weights, {id(s.tensor): s.tensor.detach() for s in layout.shards})

    def scaler_state(self) -> dict[str, float]:
        """Return the state of dynamic loss scaling; empty in other precisions than fp16."""
        if not self._engine.fp16_enabled():
            return {}
        scaler = self._engine.optimizer.loss_scaler
        return {key: getattr(scaler, key) for key in _SCALER_KEYS if hasattr(scaler, key)}

    def load_scaler_state(self, state: dict[str, float]) -> None:
        """Set dynamic loss scaling to a saved state; do nothing in other precisions than fp16."""
        if self._engine.fp16_enabled():
            for key, value in state.items():
                setattr(self._engine.optimizer.loss_scaler, key, value)

    @contextmanager
    def evaluating(self) -> Iterator[Callable[[Batch], Sums]]:
        """Switch dropout off, and yield the function that computes a batch.

        Under ZeRO 3 all ranks must call that function equally often.
        """
        self._engine.eval()
        try:
            yield self._engine
        finally:
            self._engine.train()

    @property
    def is_partitioned(self) -> bool:
        """Whether a forward pass needs all ranks, as under ZeRO stage 3."""
        return bool(self._engine.zero_optimization_partition_weights())

    def destroy(self) -> None:
        """Release DeepSpeed's objects; neither the engine nor its model can be used afterwards."""
        is_partitioned = self.is_partitioned
        self._engine.destroy()
        del self._engine
        if is_partitioned:
            _release_stage_3(self.model)


def _release_stage_3(model: torch.nn.Module) -> None:
    """Drop the references by which ZeRO 3 would keep an engine until the process ends.

    DeepSpeed 0.19.8 keeps the model on a global stack of modules, remembers what each module holds
    in a cache of its parameter coordinator's class, and defines an autograd function for each
    module. torch 2.13 never frees such a class, whose methods refer to the module and, through
    that, to the whole engine.
    """
    offload = importlib.import_module("deepspeed.runtime.zero.parameter_offload")
    modules = set(model.modules())
    stack = getattr(offload, "FWD_MODULE_STACK", [])
    stack[:] = [each for each in stack if each not in modules]
    coordinator = importlib.import_module("deepspeed.runtime.zero.partitioned_param_coordinator")
    for member in vars(coordinator.PartitionedParameterCoordinator).values():
        if inspect.isfunction(member):  # DeepSpeed's decorator, with the cache inside
            for inner in inspect.getclosurevars(member).nonlocals.values():
                if hasattr(inner, "cache_clear"):
                    inner.cache_clear()
    for module in modules:
        for name in ("pre_bwd_fn", "post_bwd_fn"):
            function = vars(module).pop(name, None)
            for method in ("forward", "setup_context", "backward"):
                if function is not None and method in vars(function):
                    delattr(function, method)


def check_precision(phase: str, precision: str) -> None:
    """Refuse a precision that DeepSpeed does not support on this machine.

    Args:
        phase: name of the phase, for the message.
        precision: `fp32`, `fp16` or `bf16`.

    Raises:
        ConfigError: DeepSpeed does not compute in this precision on this accelerator.
    """
    accelerator, supports = accelerator_support()
    if not supports[precision]:
        raise ConfigError(
            f"{phase} asks for {precision}, which DeepSpeed does not compute on this "
            f"{accelerator}; train in fp32 with --set deepspeed.{precision}.enabled="
            "false, or on a GPU"
        )


def accelerator_support() -> tuple[str, dict[str, bool]]:
    """Return the accelerator that DeepSpeed uses here, and whether it supports each precision."""
    accelerator = import_deepspeed().accelerator.get_accelerator()
    supports = {
        "fp32": True,
        "fp16": bool(accelerator.is_fp16_supported()),
        "bf16": bool(accelerator.is_bf16_supported()),
    }
    return str(accelerator.device_name()), supports


def import_deepspeed() -> Any:
    """Import DeepSpeed without its log lines and without compilation at the first start.

    On CPUs DeepSpeed 0.19.8 builds a shared-memory collective when a process group is wrapped
    (40 to 70 seconds, needs a C++ compiler, leaves files in /dev/shm). Training never calls it, it
    is for inference only, so it is marked as not available.
    """
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.utils.logger.setLevel(logging.WARNING)
    # DeepSpeed calls our LAMB an untested optimizer; it is bound to the layout and tested here.
    deepspeed.utils.logger.addFilter(lambda record: "untested" not in record.getMessage())
    # torch 2.13 deprecates collectives that DeepSpeed 0.19.8 calls in every update.
    warnings.filterwarnings(
        "ignore", message=r"`torch\.distributed\.\w+_tensor` is deprecated", category=FutureWarning
    )
    # torch 2.13 warns about all nested tensors, even jagged ones, which it recommends.
    warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors is in prototype")
    return deepspeed
