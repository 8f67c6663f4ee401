"""Predicts the time of a phase: computing, LAMB's step, and exchange that does not overlap.

    update = accumulation x micro batch + optimizer + exchange that is waited for

Computing that is not measured takes the FLOPs of full rows over peak x MFU. `ASSUMED_MFU` is
NVIDIA's published figure for BERT-large at 128 on an A100-80: 580 sequences/s x 2.406e11 FLOP /
312 TFLOP/s = 45% (DeepLearningExamples, PyTorch BERT). DeepSpeed's published figures on a V100 are
52% at 128 and 42% at 512 (272 and 52 sequences/s, bing_bert). Small models reach less.
Recomputation adds the layers' forward pass.

LAMB's step reads and writes `OPTIMIZER_BYTES` per element of a rank's part, at `ACHIEVED` of the
memory's bandwidth: float32 weight, gradient and two moments are read, moments and direction
written, then direction and weight read and weight written (40 bytes); before it the gradient is
checked, measured, converted and unscaled, after it the weight converted (24). An offloaded step
runs at the host's bandwidth, shared by its GPUs, and gradient and weight cross PCIe.

The exchange is a ring over all ranks (Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002), as
slow as its slowest link: the links between the GPUs of a host, or the network of the host, through
which each ring goes in and out once. Latency is left out. `bert_ds.plan.zero` describes what
DeepSpeed sends, and when. With `overlap_comm` all buckets but the last one are sent during the
backward pass, which is two thirds of computing, as far as they fit into it. What stage 3 gathers is
sent during computing likewise.

Evaluation, checkpoints, reading data, and the start are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from bert_ds.config.batch import BatchPlan
from bert_ds.config.recipe import PhaseConfig, RunConfig
from bert_ds.errors import ConfigError
from bert_ds.metrics.gpus import Gpu
from bert_ds.plan.measured import MeasuredStep
from bert_ds.plan.shapes import flops_of_full_rows, num_parameters, recomputed_flops
from bert_ds.plan.zero import Zero, zero_traffic

ASSUMED_MFU = 0.45
ACHIEVED = 0.8
"""Fraction of the published bandwidths of memory, links and network that is reached."""
OPTIMIZER_BYTES = 64
DEFAULT_NETWORK_GBIT_PER_S = 200.0
"""Bandwidth of a host's network: one port of HDR InfiniBand."""
DEFAULT_GPUS_PER_HOST = 8
HOST_MEMORY_GB_PER_S = 200.0
"""Memory bandwidth of a host with two sockets, 10^9 bytes/s, for an offloaded optimizer."""
PCIE_GB_PER_S = 25.0
"""Bandwidth from a GPU to its host, 10^9 bytes/s: PCIe 4 x16 less its overhead."""


@dataclass(frozen=True)
class Machine:
    """The GPUs and the network that the run is planned for."""

    gpu: Gpu
    """Kind of GPU."""
    gpus_per_host: int = DEFAULT_GPUS_PER_HOST
    """GPUs of a full host."""
    network_gbit_per_s: float = DEFAULT_NETWORK_GBIT_PER_S
    """Bandwidth of a host's network, each way, 10^9 bits/s."""

    def num_hosts(self, world_size: int) -> int:
        """Return the number of hosts that the ranks need."""
        return -(-world_size // self.gpus_per_host)

    def ring_bytes_per_s(self, world_size: int) -> float:
        """Return the bandwidth of the slowest link of a ring over all ranks, bytes/s."""
        slowest = self.gpu.link_gb_per_s
        if self.num_hosts(world_size) > 1:
            slowest = min(slowest, self.network_gbit_per_s / 8)
        return ACHIEVED * slowest * 1e9


@dataclass(frozen=True)
class MicroBatch:
    """Forward and backward of one micro batch."""

    seconds: float
    """Its duration, seconds."""
    flops: float
    """Its model FLOPs, without recomputed ones."""


@dataclass(frozen=True)
class PhaseTime:
    """Predicted seconds of a phase."""

    micro_batch_s: float
    """Forward and backward of one micro batch."""
    optimizer_s: float
    """LAMB's step, once per update."""
    exchange_s: float
    """All traffic of an update, overlapping or not."""
    exposed_exchange_s: float
    """The part of the traffic that an update waits for."""
    update_s: float
    """One whole update."""
    sequences_per_s: float
    """Throughput of all ranks, sequences/s."""
    mfu: float
    """Model FLOPs (without recomputed ones) of a whole update, as a fraction of the peak."""
    phase_s: float
    """All updates of the phase."""
    is_measured: bool
    """Whether `micro_batch_s` comes from a measurement."""


def phase_time(
    config: RunConfig,
    phase: PhaseConfig,
    batch: BatchPlan,
    machine: Machine,
    mfu: float,
    measured: MicroBatch | None = None,
) -> PhaseTime:
    """Predict the time of a phase.

    Args:
        config: settings of the run, among them model and execution.
        phase: one of its phases.
        batch: how an update is split over ranks and micro batches.
        machine: the GPUs and the network.
        mfu: fraction of the peak that a micro batch is assumed to reach.
        measured: the measured micro batch; None to assume `mfu`.

    Raises:
        ConfigError: the GPU does not compute in the phase's precision.
    """
    precision = phase.deepspeed.precision
    gpu, zero = machine.gpu, Zero.of(phase)
    if precision == "bf16" and not gpu.has_bf16:
        raise ConfigError(
            f"{phase.name} asks for bf16, which {gpu.name} does not have; take fp16 (--set "
            "deepspeed.bf16.enabled=false deepspeed.fp16.enabled=true) or another --gpu"
        )
    peak = gpu.peak_tflop_per_s(precision) * 1e12
    if measured is None:
        micro_batch = _assumed_micro_batch(config, phase, batch.micro_batch_size, peak * mfu)
    else:
        micro_batch = measured
    accumulation = batch.gradient_accumulation_steps
    parameters = num_parameters(config.model)
    optimizer_s = optimizer_seconds(machine, zero, parameters, batch.world_size)
    exchange_s, exposed_s = _exchange_seconds(machine, zero, parameters, batch, micro_batch.seconds)
    update_s = accumulation * micro_batch.seconds + optimizer_s + exposed_s
    return PhaseTime(
        micro_batch_s=micro_batch.seconds,
        optimizer_s=optimizer_s,
        exchange_s=exchange_s,
        exposed_exchange_s=exposed_s,
        update_s=update_s,
        sequences_per_s=batch.train_batch_size / update_s,
        mfu=accumulation * micro_batch.flops / update_s / peak,
        phase_s=phase.total_steps * update_s,
        is_measured=measured is not None,
    )


def _assumed_micro_batch(
    config: RunConfig, phase: PhaseConfig, micro_batch_size: int, flop_per_s: float
) -> MicroBatch:
    """Return the time of a micro batch of full rows at an assumed rate."""
    flops = flops_of_full_rows(config.model, phase, micro_batch_size)
    again = 0
    if config.execution.recompute_every:
        again = recomputed_flops(config.model, phase, micro_batch_size)
    return MicroBatch((flops + again) / flop_per_s, flops)


def measured_micro_batch(
    config: RunConfig, phase: PhaseConfig, machine: Machine, step: MeasuredStep
) -> MicroBatch:
    """Return the time of a micro batch from a measured update.

    The bench has one rank, so its update ends with LAMB's step on all parameters. The predicted
    time of that step is subtracted, but at most half of the update.

    Args:
        config: settings of the run.
        phase: the phase that was measured.
        machine: the GPUs and the network.
        step: the measurement.
    """
    optimizer_s = optimizer_seconds(machine, Zero.of(phase), num_parameters(config.model), 1)
    computing_s = max(step.update_s / 2, step.update_s - optimizer_s)
    return MicroBatch(computing_s / step.accumulation, step.micro_batch_flops)


def optimizer_seconds(machine: Machine, zero: Zero, parameters: int, ranks: int) -> float:
    """Return the seconds of LAMB's step on a rank's part of the parameters.

    Args:
        machine: the GPUs and the network.
        zero: settings of ZeRO.
        parameters: number of the model's parameters.
        ranks: number of ranks that share them.
    """
    own = -(-parameters // ranks) if zero.stage else parameters
    if not zero.is_optimizer_offloaded:
        return own * OPTIMIZER_BYTES / (ACHIEVED * machine.gpu.memory_gb_per_s * 1e9)
    sharing = min(ranks, machine.gpus_per_host)
    on_host = own * sharing * OPTIMIZER_BYTES / (ACHIEVED * HOST_MEMORY_GB_PER_S * 1e9)
    return on_host + own * 2 * zero.element_bytes / (PCIE_GB_PER_S * 1e9)


def _exchange_seconds(
    machine: Machine, zero: Zero, parameters: int, batch: BatchPlan, micro_batch_s: float
) -> tuple[float, float]:
    """Return the seconds of an update's traffic, and how many of them the update waits for."""
    ranks, accumulation = batch.world_size, batch.gradient_accumulation_steps
    traffic = zero_traffic(zero, parameters, ranks)
    rate = machine.ring_bytes_per_s(ranks)
    gradients_s, gathered_s = traffic.gradients / rate, traffic.gathered / rate
    backward_s = 2 / 3 * micro_batch_s
    last_s = gradients_s * traffic.last_share
    waited_s = last_s + max(0.0, gradients_s - last_s - backward_s)
    times = accumulation if traffic.is_each_micro_batch else 1
    exposed_s = times * waited_s + traffic.weights / rate
    total_s = times * gradients_s + traffic.weights / rate + accumulation * gathered_s
    hidden_s = micro_batch_s if zero.is_overlapping else 0.0
    exposed_s += accumulation * max(0.0, gathered_s - hidden_s)
    return total_s, exposed_s
