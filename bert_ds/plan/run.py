"""Plans a whole run: its phases, and the assumptions behind the predictions."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bert_ds.config.batch import BatchPlan
from bert_ds.config.deepspeed import Precision
from bert_ds.config.recipe import PhaseConfig, RunConfig
from bert_ds.errors import ConfigError
from bert_ds.metrics.gpus import GPUS, Gpu, gpu_of_device
from bert_ds.plan.duration import (
    ACHIEVED,
    ASSUMED_MFU,
    DEFAULT_GPUS_PER_HOST,
    DEFAULT_NETWORK_GBIT_PER_S,
    Machine,
    PhaseTime,
    measured_micro_batch,
    phase_time,
)
from bert_ds.plan.measured import MeasuredStep, read_measured
from bert_ds.plan.memory import (
    GIB,
    LargestMicroBatch,
    PhaseMemory,
    largest_micro_batch,
    phase_memory,
)
from bert_ds.plan.shapes import flops_of_full_rows, num_parameters


@dataclass(frozen=True)
class PlanOptions:
    """The machine that a run is planned for; None for what is not given."""

    gpu: str | None = None
    """Name in the table of `bert_ds.metrics.gpus`; without it memory has no limit, and no time is
    predicted."""
    gpus_per_host: int | None = None
    """GPUs of a full host."""
    network_gbit_per_s: float | None = None
    """Bandwidth of a host's network, 10^9 bits/s."""
    mfu: float | None = None
    """Fraction of the peak that micro batches reach."""
    measured: tuple[Path, ...] = ()
    """Files of `bert-ds bench step --json`, for some or all phases."""


@dataclass(frozen=True)
class PhasePlan:
    """The plan of one phase."""

    name: str
    """Name of the phase."""
    sequence_length: int
    """Tokens of the longest sequence."""
    train_batch_size: int
    """Sequences per update, all ranks."""
    micro_batch_size: int
    """Sequences per rank per forward."""
    gradient_accumulation_steps: int
    """Micro batches per update."""
    total_steps: int
    """Number of updates."""
    sequences: int
    """Sequences consumed in the phase."""
    tokens_at_most: int
    """Tokens of the phase if all sequences were full."""
    flops_at_most: int
    """FLOPs of the phase if all sequences were full, forward and backward."""
    precision: Precision
    """Precision of weights and activations."""
    zero_stage: int
    """Stage of ZeRO."""
    memory_bytes: PhaseMemory
    """Memory on each GPU, by part, with full sequences."""
    host_memory_bytes: int
    """Memory on each full host under offload, else 0."""
    largest_micro_batch: LargestMicroBatch | None
    """The largest micro batches that fit; None if the GPU is unknown."""
    time: PhaseTime | None
    """Predicted times; None if the GPU is unknown."""


@dataclass(frozen=True)
class RunPlan:
    """The plan of all phases, and its assumptions."""

    recipe: str
    """Name of the recipe."""
    world_size: int
    """Number of ranks."""
    num_parameters: int
    """Parameters of the model."""
    machine: Machine | None
    """The GPUs and the network; None if the GPU is unknown."""
    phases: tuple[PhasePlan, ...]
    """The phases, in order."""
    assumed_mfu: float | None
    """Fraction of the peak in phases that are not measured; None if the GPU is unknown."""
    total_s: float | None
    """Predicted seconds of all phases; None if the GPU is unknown."""
    assumptions: tuple[str, ...]
    """Sentences on the numbers that the plan assumes."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; memory in bytes, time in seconds."""
        return asdict(self)


def plan_run(config: RunConfig, world_size: int, options: PlanOptions | None = None) -> RunPlan:
    """Plan every phase of a run.

    Args:
        config: settings of the run.
        world_size: number of ranks, one per GPU.
        options: GPUs, network and measurements.

    Raises:
        ConfigError: the batch sizes of a phase do not divide, an option is unknown or out of range,
            the GPU does not compute in a phase's precision, or a measurement has other settings.
    """
    options = options or PlanOptions()
    _check(options)
    measured = read_measured(list(options.measured), config)
    gpu = _gpu(options, measured)
    gpus_per_host = options.gpus_per_host or DEFAULT_GPUS_PER_HOST
    machine = None
    if gpu is not None:
        network = options.network_gbit_per_s or DEFAULT_NETWORK_GBIT_PER_S
        machine = Machine(gpu, gpus_per_host, network)
    mfu = options.mfu or ASSUMED_MFU
    phases = []
    for phase in config.phases:
        batch = phase.plan_batch(world_size)
        plan = _phase(config, phase, batch, gpus_per_host)
        if machine is not None:
            step = measured.get(phase.name)
            plan = _on_machine(plan, config, phase, batch, machine, mfu, step)
        phases.append(plan)
    times = [plan.time.phase_s for plan in phases if plan.time is not None]
    return RunPlan(
        recipe=config.recipe,
        world_size=world_size,
        num_parameters=num_parameters(config.model),
        machine=machine,
        phases=tuple(phases),
        assumed_mfu=mfu if machine is not None else None,
        total_s=sum(times) if machine is not None else None,
        assumptions=tuple(_assumptions(config, world_size, options, machine, measured)),
    )


def _check(options: PlanOptions) -> None:
    """Refuse values that are out of range, and values without effect."""
    if options.mfu is not None and not 0 < options.mfu <= 1:
        raise ConfigError(f"--mfu must be above 0 and at most 1, it is {options.mfu:g}")
    if options.gpus_per_host is not None and options.gpus_per_host < 1:
        raise ConfigError(f"--gpus-per-host must be at least 1, it is {options.gpus_per_host}")
    network = options.network_gbit_per_s
    if network is not None and network <= 0:
        raise ConfigError(f"--network-gbit-per-s must be above 0, it is {network:g}")
    if options.gpu is None and not options.measured:
        for flag, value in (("--mfu", options.mfu), ("--network-gbit-per-s", network)):
            if value is not None:
                raise ConfigError(f"{flag} predicts time, which needs the kind of GPU: add --gpu")


def _gpu(options: PlanOptions, measured: dict[str, MeasuredStep]) -> Gpu | None:
    """Return the kind of GPU that was named, or that of the measurements."""
    gpu = next((each for each in GPUS if each.name == options.gpu), None)
    if options.gpu is not None and gpu is None:
        names = ", ".join(each.name for each in GPUS)
        raise ConfigError(f"--gpu {options.gpu} is not known; known are {names}")
    for step in measured.values():
        if gpu is not None and gpu.family not in step.device:
            raise ConfigError(
                f"--measured {step.path}: measured on {step.device}, and not on {gpu.name}; give "
                "the --gpu of the measurement, or leave one of the two out"
            )
        gpu = gpu or gpu_of_device(step.device)
        if gpu is None:
            raise ConfigError(
                f"--measured {step.path}: measured on {step.device}, which is none of the GPUs "
                f"that are known: {', '.join(each.name for each in GPUS)}"
            )
    return gpu


def _phase(
    config: RunConfig, phase: PhaseConfig, batch: BatchPlan, gpus_per_host: int
) -> PhasePlan:
    """Plan what does not depend on the kind of GPU."""
    sequences = batch.train_batch_size * phase.total_steps
    memory = phase_memory(
        config.model,
        phase,
        config.execution,
        batch.world_size,
        batch.micro_batch_size,
        batch.gradient_accumulation_steps,
    )
    return PhasePlan(
        name=phase.name,
        sequence_length=phase.sequence_length,
        train_batch_size=batch.train_batch_size,
        micro_batch_size=batch.micro_batch_size,
        gradient_accumulation_steps=batch.gradient_accumulation_steps,
        total_steps=phase.total_steps,
        sequences=sequences,
        tokens_at_most=sequences * phase.sequence_length,
        flops_at_most=flops_of_full_rows(config.model, phase, sequences),
        precision=phase.deepspeed.precision,
        zero_stage=phase.deepspeed.zero_stage,
        memory_bytes=memory,
        host_memory_bytes=memory.host_per_rank * min(gpus_per_host, batch.world_size),
        largest_micro_batch=None,
        time=None,
    )


def _on_machine(
    plan: PhasePlan,
    config: RunConfig,
    phase: PhaseConfig,
    batch: BatchPlan,
    machine: Machine,
    mfu: float,
    step: MeasuredStep | None,
) -> PhasePlan:
    """Add the largest micro batches that fit, and the predicted times."""
    measured = None if step is None else measured_micro_batch(config, phase, machine, step)
    return replace(
        plan,
        largest_micro_batch=largest_micro_batch(
            config.model,
            phase,
            config.execution,
            batch.world_size,
            machine.gpu.memory_gib * GIB,
        ),
        time=phase_time(config, phase, batch, machine, mfu, measured),
    )


def _assumptions(
    config: RunConfig,
    world_size: int,
    options: PlanOptions,
    machine: Machine | None,
    measured: dict[str, MeasuredStep],
) -> list[str]:
    """Return sentences on the assumptions of the plan."""
    lines = ["memory is that of full rows; it was derived, and not measured on a GPU"]
    if config.execution.compile:
        lines.append("compiled layers keep less than the plain ones that are counted")
    if machine is None:
        return lines
    for step in measured.values():
        lines.append(
            f"{step.phase}'s micro batch was measured on {step.device}, on rows of which "
            f"{step.real_tokens_share:.0%} are real tokens ({step.path})"
        )
    if len(measured) < len(config.phases):
        source = "as asked for"
        if options.mfu is None:
            source = (
                "NVIDIA's figure for BERT-large at 128 on an A100-80 (published ones for a V100: "
                "52% at 128, 42% at 512); small models reach less"
            )
        which = "other phases compute" if measured else "micro batches compute"
        mfu = options.mfu or ASSUMED_MFU
        lines.append(f"{which} full rows at {mfu:.0%} of the peak (--mfu): {source}")
    hosts = machine.num_hosts(world_size)
    where = f"links of {machine.gpu.link_gb_per_s:g} GB/s within a host"
    if hosts > 1:
        where += (
            f", a network of {machine.network_gbit_per_s:g} Gbit/s a host (--network-gbit-per-s)"
        )
    if world_size > 1:
        each = f"{machine.gpus_per_host} GPUs each" if hosts > 1 else f"{world_size} GPUs"
        lines.append(f"{hosts} host{'s' if hosts > 1 else ''} of {each}, {where}")
    lines.append(
        f"{ACHIEVED:.0%} of the published bandwidths are reached; evaluation, checkpoints, waiting "
        "for data and the start are left out"
    )
    return lines
