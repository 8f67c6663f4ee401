"""Counts what DeepSpeed keeps in memory and sends, by ZeRO stage; from its sources, 0.19.8.

Legend: n parameters, r ranks, b bytes of an element in the model's precision, a of one in which
gradients are added up (`data_types.grad_accum_dtype`, else b), c of one that is sent
(`communication_data_type`, else b), K = `reduce_bucket_size` in elements (500 million where it is
left out), k = min(n, K).

Kept all the time, by rank (Rajbhandari et al. 2020, arXiv:1910.02054, section 3; K = 12 there):

    stage                    0          1            2            3
    weights                  4 n        b n          b n          b n / r, and those gathered
    gradients                4 n        a n          a n / r      a n / r
    float32 weights          -          4 n / r      4 n / r      4 n / r
    LAMB's two moments       8 n        8 n / r      8 n / r      8 n / r

Stage 0 is allowed with fp32 only, where the weights are the float32 weights. Under ZeRO even fp32
has a second copy (`single_partition_of_fp32_groups` is cloned). With one micro batch per update the
gradients of stage 2 exist in the bucket only; they are counted nevertheless.

Buckets. With `contiguous_gradients` (the default) `setup_buckets` and stage 3's constructor take
torch.empty(K), of K elements however small the model is; two of them with `overlap_comm` at stages
1 and 2. The bucket is sent when the next gradient has no room in it, or at the end of the backward
pass: a model of n <= K sends everything then, after the computation, even with `overlap_comm`. With
several ranks `allreduce_bucket` sends a flat copy, of k elements. `allgather_bucket_size` takes no
memory: `all_gather_into_tensor` writes to the weights' own buffer.

Stage 3 releases a parameter in the forward pass only if its next use is `max_reuse_distance`
elements away (10^9 where it is left out). The backward pass reaches what was d elements before the
end after 2 d elements, so min(n, distance / 2) elements stay gathered. Besides them
`prefetch_bucket_size` elements and the parameter in use are gathered. Without
`contiguous_gradients` the k gradients that wait to be sent take memory of their own at stages 2
and 3.

At the update of stages 1 and 2, when buckets and activations are freed, a rank's own part of the
gradients exists twice in the model's precision and once in float32 (`get_flat_partition`,
`flatten`, `.to`); at stage 3 that of a sub-group exists once in each. At stage 0 LAMB writes the
update next to the gradient.

Offload of the optimizer to the CPU moves float32 weights, moments and their gradient (4 + 8 + 4
bytes) to the host; at stages 1 and 2 also the weights on their way back (b) and a buffer of the
largest parameter, which the GPU has too; at stage 2 with accumulation, and at stage 3, the summed
gradients (a). Offload of parameters (stage 3) moves b n / r. What goes to NVMe is counted as host
memory.

Sent by each rank, with ring algorithms:

    stage 0   once per update 2 (r-1)/r c n: an all-reduce
    stage 1   once per update 2 (r-1)/r c n: an all-reduce, and not a reduce-scatter, unless
              `use_multi_rank_bucket_allreduce` is off: (r-1)/r c n, a reduce to each owner;
              then (r-1)/r b n: the weights' all-gather
    stage 2   the first in each micro batch, the second once per update
    stage 3   in each micro batch (r-1)/r c n (reduce-scatter), (r-1)/r b n (all-gather), and the
              latter once more for what was released in between
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from bert_ds.config.recipe import PhaseConfig
from bert_ds.model.family import ELEMENT_BYTES

FLOAT32 = 4
_STAGE_0_BUCKET = 500_000_000
"""MEMORY_OPT_ALLREDUCE_SIZE of DeepSpeed's engine, elements."""
_DTYPES = {"fp32": 4, "fp16": 2, "bf16": 2, "bfp16": 2}


@dataclass(frozen=True)
class Zero:
    """Settings of a phase's DeepSpeed JSON that decide memory and traffic, with defaults."""

    stage: int
    """Stage of ZeRO."""
    element_bytes: int
    """b, bytes of an element of the weights."""
    gradient_bytes: int
    """a, bytes of an element of the summed gradients."""
    sent_bytes: int
    """c, bytes of an element that is sent."""
    bucket: int
    """K, in elements."""
    is_contiguous: bool
    """`contiguous_gradients`."""
    is_overlapping: bool
    """`overlap_comm`; by default only stage 3 overlaps."""
    is_sent_once: bool
    """Whether each part of the gradients is sent to its owner only."""
    is_optimizer_offloaded: bool
    """Whether the optimizer is on the host."""
    are_parameters_offloaded: bool
    """Whether the parameters are on the host."""
    prefetched: int
    """`prefetch_bucket_size`, in elements; 0 below stage 3."""
    reuse_distance: int
    """`max_reuse_distance`, in elements."""
    sub_group: int
    """`sub_group_size`, in elements."""

    @classmethod
    def of(cls, phase: PhaseConfig) -> Zero:
        """Read the settings of a phase."""
        stage = phase.deepspeed.zero_stage
        element = ELEMENT_BYTES[phase.deepspeed.precision]
        deepspeed = phase.deepspeed.raw
        section = deepspeed.get("zero_optimization", {})
        types = deepspeed.get("data_types")
        accumulated = types.get("grad_accum_dtype") if isinstance(types, dict) else None
        is_sent_once = stage > 0 and section.get("reduce_scatter", True) is not False
        if stage < 3 and section.get("use_multi_rank_bucket_allreduce", True) is not False:
            is_sent_once = False
        overlap = section.get("overlap_comm")
        return cls(
            stage=stage,
            element_bytes=element,
            gradient_bytes=_DTYPES.get(str(accumulated), element),
            sent_bytes=_DTYPES.get(str(deepspeed.get("communication_data_type")), element),
            bucket=_elements(section, "reduce_bucket_size", 5e8) if stage else _STAGE_0_BUCKET,
            is_contiguous=stage > 0 and section.get("contiguous_gradients", True) is not False,
            is_overlapping=stage == 3 if overlap is None else stage > 0 and bool(overlap),
            is_sent_once=is_sent_once,
            is_optimizer_offloaded=stage > 0 and _is_offloaded(section, "offload_optimizer"),
            are_parameters_offloaded=stage == 3 and _is_offloaded(section, "offload_param"),
            prefetched=_elements(section, "prefetch_bucket_size", 5e7) if stage == 3 else 0,
            reuse_distance=_elements(section, "max_reuse_distance", 1e9),
            sub_group=_elements(section, "sub_group_size", 1e9),
        )


@dataclass(frozen=True)
class ZeroMemory:
    """Bytes that a rank keeps, besides those of a micro batch."""

    weights: int
    """Weights in the model's precision."""
    gradients: int
    """Gradients, summed over the micro batches."""
    optimizer: int
    """Float32 weights and moments."""
    buffers: int
    """Buckets, and the copies that are sent from them during a backward pass."""
    exchange: int
    """Additional bytes while gradients are exchanged after the last backward pass; may be negative,
    since gradients move to the buckets."""
    update: int
    """Additional bytes while the optimizer steps; may be negative, since buckets are freed."""
    host: int
    """Bytes on the rank's host, under offload."""


def zero_memory(
    zero: Zero, parameters: int, largest: int, ranks: int, accumulation: int
) -> ZeroMemory:
    """Return the bytes of the module's first table.

    Args:
        zero: settings of ZeRO.
        parameters: n.
        largest: elements of the largest parameter.
        ranks: r.
        accumulation: micro batches per update.
    """
    model = _Model(zero, parameters, largest, ranks, accumulation)
    return ZeroMemory(
        weights=_weights(model),
        gradients=_gradients(model),
        optimizer=_optimizer(model),
        buffers=_buffers(model),
        exchange=_exchange(model),
        update=_update(model),
        host=_host(model),
    )


@dataclass(frozen=True)
class _Model:
    """A model on a number of ranks."""

    zero: Zero
    """Settings of ZeRO."""
    parameters: int
    """n."""
    largest: int
    """Elements of the largest parameter."""
    ranks: int
    """r."""
    accumulation: int
    """Micro batches per update."""

    @property
    def own(self) -> int:
        """Elements of a rank's part, n / r."""
        return -(-self.parameters // self.ranks)

    @property
    def in_bucket(self) -> int:
        """Elements that a bucket sends at once, k."""
        return min(self.parameters, self.zero.bucket)

    @property
    def copy_bytes(self) -> int:
        """Bytes of the flat copy of a bucket that is sent."""
        return self.in_bucket * self.zero.element_bytes if self.ranks > 1 else 0

    @property
    def sends_in_backward(self) -> bool:
        """Whether buckets are sent, and their copies made, during the backward pass."""
        return self.zero.stage > 1 and self.parameters > self.zero.bucket

    @property
    def sharded_bytes(self) -> int:
        """Bytes of the weights that a rank keeps all the time, on the GPU or the host."""
        return self.zero.element_bytes * (self.own if self.zero.stage == 3 else self.parameters)

    @property
    def gathered_bytes(self) -> int:
        """Most bytes of the weights that stage 3 has gathered besides its shards."""
        if self.zero.stage < 3:
            return 0
        kept = min(self.parameters, self.zero.reuse_distance // 2)
        gathered = min(self.parameters, kept + self.zero.prefetched + self.largest)
        return gathered * self.zero.element_bytes


def _weights(model: _Model) -> int:
    kept = 0 if model.zero.are_parameters_offloaded else model.sharded_bytes
    return kept + model.gathered_bytes


def _gradients(model: _Model) -> int:
    zero = model.zero
    if zero.stage == 0:
        return FLOAT32 * model.parameters
    if zero.stage == 1:
        return zero.gradient_bytes * model.parameters
    return 0 if zero.is_optimizer_offloaded else zero.gradient_bytes * model.own


def _optimizer(model: _Model) -> int:
    """Count float32 weights and two moments; at stage 0 the weights themselves are float32."""
    if model.zero.stage == 0:
        return 2 * FLOAT32 * model.parameters
    return 0 if model.zero.is_optimizer_offloaded else 3 * FLOAT32 * model.own


def _buffers(model: _Model) -> int:
    zero = model.zero
    if zero.stage == 0:
        return 0
    if zero.is_contiguous:
        num_buckets = 2 if zero.is_overlapping and zero.stage < 3 else 1
        buckets = num_buckets * zero.bucket * zero.element_bytes
    else:  # stage 1 sends the gradients themselves
        buckets = model.in_bucket * zero.element_bytes if zero.stage > 1 else 0
    copied = model.copy_bytes if model.sends_in_backward else 0
    way_back = zero.is_optimizer_offloaded and zero.stage < 3
    return buckets + copied + (zero.element_bytes * model.largest if way_back else 0)


def _exchange(model: _Model) -> int:
    zero = model.zero
    copied = 0 if model.sends_in_backward else model.copy_bytes
    own = zero.element_bytes * model.own if zero.stage in (1, 2) else 0
    # At stage 1 the gradients have moved to the bucket.
    moved = model.in_bucket * zero.gradient_bytes if zero.stage == 1 and zero.is_contiguous else 0
    return copied + own - moved


def _update(model: _Model) -> int:
    zero = model.zero
    if zero.stage == 0:
        return FLOAT32 * model.parameters
    if zero.is_optimizer_offloaded:
        return -_gradients(model) - model.gathered_bytes
    stepped = min(model.own, zero.sub_group) if zero.stage == 3 else model.own
    converted = 0 if zero.gradient_bytes == FLOAT32 else FLOAT32
    copies = (zero.gradient_bytes + converted) * stepped
    if zero.stage == 3:
        return copies - model.gathered_bytes
    return copies + zero.gradient_bytes * model.own - _gradients(model) - _buffers(model)


def _host(model: _Model) -> int:
    zero = model.zero
    parameters = model.sharded_bytes if zero.are_parameters_offloaded else 0
    if not zero.is_optimizer_offloaded:
        return parameters
    optimizer = (4 + 8 + 4) * model.own  # float32 weights, moments and gradient
    way_back = zero.element_bytes * (model.own + model.largest) if zero.stage < 3 else 0
    has_sums = zero.stage == 3 or (zero.stage == 2 and model.accumulation > 1)
    return parameters + optimizer + way_back + zero.gradient_bytes * model.own * has_sums


@dataclass(frozen=True)
class Traffic:
    """Bytes that a rank sends."""

    gradients: int
    """Gradients, per exchange."""
    is_each_micro_batch: bool
    """Whether they are exchanged in each micro batch, or once per update."""
    weights: int
    """Weights that stages 1 and 2 gather once per update."""
    gathered: int
    """Weights that stage 3 gathers in each micro batch."""
    last_share: float
    """Fraction of the gradients that is sent after the backward pass."""


def zero_traffic(zero: Zero, parameters: int, ranks: int) -> Traffic:
    """Return the bytes of the module's second table.

    Args:
        zero: settings of ZeRO.
        parameters: n.
        ranks: r.
    """
    once = (ranks - 1) / ranks
    gather = round(once * zero.element_bytes * parameters)
    scatter = round(once * zero.sent_bytes * parameters)
    gradients = scatter if zero.is_sent_once else 2 * scatter
    last_share = min(1.0, zero.bucket / parameters) if zero.is_overlapping else 1.0
    if zero.stage == 3:
        released = max(0, parameters - zero.reuse_distance // 2)
        fetched = round(once * zero.element_bytes * (parameters + released))
        return Traffic(gradients, True, 0, fetched, last_share)
    weights = gather if zero.stage else 0
    return Traffic(gradients, zero.stage == 2, weights, 0, last_share)


def _elements(section: dict[str, Any], key: str, default: float) -> int:
    """Return a number of elements; stage 3's keys have a longer name as well."""
    value = section.get(key, section.get(f"stage3_{key}", default))
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return int(value if is_number else default)


def _is_offloaded(
    section: dict[str, Any], key: Literal["offload_optimizer", "offload_param"]
) -> bool:
    part = section.get(key)
    return isinstance(part, dict) and part.get("device", "none") not in ("none", None)
