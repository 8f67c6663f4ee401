"""The memory of a phase on each GPU, by part, and the largest micro batch that a GPU has room for.

Three moments take the most: a micro batch's forward and backward pass, the exchange of gradients
after the last of them, and LAMB's step. The first holds activations, the others copies of
gradients; see `bert_ds.model.bert.memory` and `bert_ds.plan.zero`. The largest of them counts.

Besides what tensors take there is an allowance, which cannot be derived:

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
"""Of what tensors take."""


@dataclass(frozen=True)
class PhaseMemory:
    """Bytes on each GPU in one phase.

    Attributes:
        weights: in the model's precision; at stage 0 they are float32.
        gradients: added up over the micro batches.
        optimizer: float32 weights (under ZeRO) and LAMB's two moments.
        buffers: DeepSpeed's buckets.
        activations: kept for the backward pass.
        heads: what the heads keep, the scores of the vocabulary above all.
        workspace: what the backward pass works in.
        exchange_extra: what the exchange of gradients takes in place of the last three.
        update_extra: what LAMB's step takes in place of the last three; negative where buckets
            and gradients are gone by then.
        allowance: CUDA context, NCCL, the allocator's holes.
        total: all of it at the moment that takes the most.
        peak_at: that moment: "micro batch", "exchange" or "update".
        host_per_rank: bytes that a rank takes on its host under offload.
    """

    weights: int
    gradients: int
    optimizer: int
    buffers: int
    activations: int
    heads: int
    workspace: int
    exchange_extra: int
    update_extra: int
    allowance: int
    total: int
    peak_at: str
    host_per_rank: int


def phase_memory(
    model: ModelConfig,
    phase: PhaseConfig,
    execution: ExecutionConfig,
    world_size: int,
    micro_batch_size: int,
    accumulation: int,
) -> PhaseMemory:
    """Memory of a phase at a micro batch of full rows.

    Args:
        model, phase, execution: of the recipe.
        world_size: ranks.
        micro_batch_size: sequences per rank per forward; need not be the phase's.
        accumulation: micro batches an update.

    Raises:
        ConfigError: stage or precision are not what DeepSpeed knows.
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
    """What a GPU has room for.

    Attributes:
        fits: the largest micro batch that fits, 0 where not even one row does; no larger than a
            rank's rows of an update.
        divides: the largest that fits and divides train_batch_size by the ranks; 0 for none.
    """

    fits: int
    divides: int


def largest_micro_batch(
    model: ModelConfig,
    phase: PhaseConfig,
    execution: ExecutionConfig,
    world_size: int,
    memory_bytes: float,
) -> LargestMicroBatch:
    """By bisection: memory grows with the micro batch.

    Args:
        model, phase, execution, world_size: see `phase_memory`.
        memory_bytes: of the GPU.
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
