"""Predicts the memory of a phase on each GPU, by part, and the largest micro batch that fits.

Three moments take the most: forward and backward of a micro batch, the exchange of gradients after
the last micro batch, and LAMB's step. The first holds activations, the others copies of gradients;
see `bert_ds.model.bert.memory` and `bert_ds.plan.zero`. The largest of the three counts.

Besides the tensors there is an allowance, which cannot be derived:

    CUDA context, kernels, cuBLAS   0.8 GiB
    NCCL's channels                 0.5 GiB, with more than one rank
    holes of torch's allocator      5% of the tensors
"""

from __future__ import annotations

from dataclasses import dataclass

from bert_ds.config.model import ModelConfig
from bert_ds.config.recipe import ExecutionConfig, PhaseConfig
from bert_ds.model.shapes import shape_of
from bert_ds.plan.shapes import largest_parameter, num_parameters
from bert_ds.plan.zero import Zero, zero_memory

GIB = 2**30
CONTEXT_BYTES = 8 * GIB // 10
NCCL_BYTES = GIB // 2
HOLES = 0.05
"""Fraction of the tensors' memory."""


@dataclass(frozen=True)
class PhaseMemory:
    """Bytes on each GPU in one phase."""

    weights: int
    """Weights in the model's precision; at stage 0 they are float32."""
    gradients: int
    """Gradients, summed over the micro batches."""
    optimizer: int
    """Float32 weights (under ZeRO) and LAMB's two moments."""
    buffers: int
    """DeepSpeed's buckets."""
    activations: int
    """Activations that are kept for the backward pass."""
    heads: int
    """Tensors that the heads keep, most of all the scores of the vocabulary."""
    workspace: int
    """Temporary tensors of the backward pass."""
    exchange_extra: int
    """Memory of the exchange of gradients, in place of the three above."""
    update_extra: int
    """Memory of LAMB's step, in place of those three; negative where buckets and gradients are
    freed before it."""
    allowance: int
    """CUDA context, NCCL, the allocator's holes."""
    total: int
    """The sum at the moment that takes the most."""
    peak_at: str
    """That moment: "micro batch", "exchange" or "update"."""
    host_per_rank: int
    """Bytes that a rank takes on its host under offload."""


def phase_memory(
    model: ModelConfig,
    phase: PhaseConfig,
    execution: ExecutionConfig,
    world_size: int,
    micro_batch_size: int,
    accumulation: int,
) -> PhaseMemory:
    """Return the memory of a phase with micro batches of full rows.

    Args:
        model: shape of the model.
        phase: settings of the phase.
        execution: settings of execution.
        world_size: number of ranks.
        micro_batch_size: sequences per rank per forward; it may differ from the phase's.
        accumulation: micro batches per update.

    Raises:
        ConfigError: DeepSpeed does not have the stage or the precision.
    """
    zero = zero_memory(
        Zero.of(phase), num_parameters(model), largest_parameter(model), world_size, accumulation
    )
    precision = phase.deepspeed.precision
    micro = shape_of(model).micro_batch_memory(model, phase, execution, precision, micro_batch_size)
    extras = {"micro batch": micro.total, "exchange": zero.exchange, "update": zero.update}
    peak_at = max(extras, key=lambda moment: extras[moment])
    tensors = zero.weights + zero.gradients + zero.optimizer + zero.buffers + extras[peak_at]
    libraries = CONTEXT_BYTES + (NCCL_BYTES if world_size > 1 else 0)
    allowance = libraries + round(HOLES * tensors)
    return PhaseMemory(
        weights=zero.weights,
        gradients=zero.gradients,
        optimizer=zero.optimizer,
        buffers=zero.buffers,
        activations=micro.activations,
        heads=micro.heads,
        workspace=micro.workspace,
        exchange_extra=zero.exchange,
        update_extra=zero.update,
        allowance=allowance,
        total=tensors + allowance,
        peak_at=peak_at,
        host_per_rank=zero.host,
    )


@dataclass(frozen=True)
class LargestMicroBatch:
    """The largest micro batches that a GPU has room for."""

    fits: int
    """The largest one that fits, at most a rank's rows of an update; 0 if not even one row fits."""
    divides: int
    """The largest one that fits and divides a rank's rows of an update; 0 for none."""


def largest_micro_batch(
    model: ModelConfig,
    phase: PhaseConfig,
    execution: ExecutionConfig,
    world_size: int,
    memory_bytes: float,
) -> LargestMicroBatch:
    """Find the largest micro batches by bisection, since memory grows with the micro batch.

    Args:
        model: shape of the model.
        phase: settings of the phase.
        execution: settings of execution.
        world_size: number of ranks.
        memory_bytes: memory of the GPU.
    """
    rows_of_rank = phase.deepspeed.train_batch_size // world_size

    def fits(micro: int) -> bool:
        accumulation = max(1, rows_of_rank // micro)
        found = phase_memory(model, phase, execution, world_size, micro, accumulation)
        return found.total <= memory_bytes

    low, high = 0, rows_of_rank + 1  # low fits, high is too many
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    is_even = phase.deepspeed.train_batch_size % world_size == 0
    divisors = (micro for micro in range(low, 0, -1) if rows_of_rank % micro == 0)
    return LargestMicroBatch(low, next(divisors, 0) if is_even else 0)
