"""Formats a plan for people, with units."""

from __future__ import annotations

from pathlib import Path

from bert_ds.config.recipe import PhaseConfig
from bert_ds.durations import duration
from bert_ds.plan.memory import GIB, PhaseMemory
from bert_ds.plan.run import PhasePlan, RunPlan


def plan_as_text(plan: RunPlan) -> str:
    """Return the whole plan as text, with some lines for each phase."""
    ranks = f"{plan.world_size:,} rank{'s' if plan.world_size > 1 else ''}"
    lines = [f"{plan.recipe}: {scaled(plan.num_parameters, 'parameters')}, {ranks}"]
    for phase in plan.phases:
        lines += [
            f"{phase.name}, sequence length {phase.sequence_length}",
            f"  {phase.train_batch_size:,} sequences an update = micro batch "
            f"{phase.micro_batch_size:,} x accumulation {phase.gradient_accumulation_steps:,} x "
            f"{ranks}",
            f"  {phase.total_steps:,} updates, {phase.sequences:,} sequences, at most "
            f"{scaled(phase.tokens_at_most, 'tokens')} and {scaled(phase.flops_at_most, 'FLOP')}",
            *(f"  {line}" for line in _memory_lines(phase, plan)),
            *(f"  {line}" for line in _time_lines(phase)),
        ]
    if plan.total_s is not None:
        gpu_hours = plan.total_s / 3600 * plan.world_size
        lines.append(f"all phases: {duration(plan.total_s)}, {gpu_hours:,.0f} GPU hours")
    if plan.machine is not None:
        lines += ["assumed:", *(f"  {line}" for line in plan.assumptions)]
    return "\n".join(lines)


def _memory_lines(phase: PhasePlan, plan: RunPlan) -> list[str]:
    memory = phase.memory_bytes
    of = ""
    if plan.machine is not None:
        gpu = plan.machine.gpu
        of = f" of {gpu.memory_gib:g} GiB ({gpu.name})"
        if memory.total > gpu.memory_gib * GIB:
            of += ", too much"
    lines = [
        f"memory a GPU in {phase.precision} at ZeRO {phase.zero_stage}, full rows: "
        f"{_gib(memory.total)}{of}",
        f"  {_parts(memory)}",
    ]
    if memory.host_per_rank:
        lines.append(f"memory a host, offloaded: {_gib(phase.host_memory_bytes)}")
    if phase.largest_micro_batch is not None:
        largest = phase.largest_micro_batch
        dividing = f"that divides {phase.train_batch_size:,} by the ranks"
        if not largest.fits:
            text = "no micro batch fits"
        elif largest.divides == largest.fits:
            text = f"largest micro batch that fits: {largest.fits:,}, {dividing}, too"
        elif largest.divides:
            text = (
                f"largest micro batch that fits: {largest.fits:,}; {dividing}: {largest.divides:,}"
            )
        else:
            text = f"largest micro batch that fits: {largest.fits:,}; none {dividing}"
        lines.append(text)
    return lines


def _parts(memory: PhaseMemory) -> str:
    """Return the parts of the memory at the moment that takes the most."""
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "buckets": memory.buffers,
    }
    if memory.peak_at == "micro batch":
        parts |= {
            "activations": memory.activations,
            "heads": memory.heads,
            "backward": memory.workspace,
        }
    elif memory.peak_at == "exchange":
        parts["exchange of gradients"] = memory.exchange_extra
    else:
        parts["LAMB's step"] = memory.update_extra
    parts["allowance"] = memory.allowance
    return ", ".join(f"{name} {_gib(size)}" for name, size in parts.items() if size)


def _time_lines(phase: PhasePlan) -> list[str]:
    time = phase.time
    if time is None:
        return []
    computing = phase.gradient_accumulation_steps * time.micro_batch_s
    overlap = "nothing of it overlaps"
    if time.exposed_exchange_s < time.exchange_s:
        overlap = f"of {_seconds(time.exchange_s)}, the rest overlaps"
    update = (
        f"  update {_seconds(time.update_s)} = computing {_seconds(computing)} + LAMB "
        f"{_seconds(time.optimizer_s)}"
    )
    if time.exchange_s:
        update += f" + exchange {_seconds(time.exposed_exchange_s)} ({overlap})"
    return [
        f"time {duration(time.phase_s)}: {time.sequences_per_s:,.0f} sequences/s, MFU "
        f"{time.mfu:.1%}",
        update,
    ]


def passes_as_text(phase: PhaseConfig, folder: Path, num_rows: int) -> str:
    """Return a line on how often a phase reads its dataset.

    Args:
        phase: settings of the phase.
        folder: the dataset's folder.
        num_rows: its training rows.
    """
    passes = phase.total_steps * phase.deepspeed.train_batch_size / num_rows
    return f"{folder}: {num_rows:,} train rows, {passes:,.3g} passes in {phase.name}"


def scaled(number: float, unit: str) -> str:
    """Format a number with three digits and a prefix: 336 M parameters, 59 G tokens."""
    for prefix in ("", "k", "M", "G", "T", "P", "E"):
        if number < 999.5 or prefix == "E":
            return f"{number:.3g} {prefix}{' ' if prefix and len(unit) > 4 else ''}{unit}"
        number /= 1000
    raise AssertionError("the last prefix takes any number")


def _gib(size: int) -> str:
    """Format bytes: 1.25 GiB, 12.5 GiB, 125 GiB; 64.1 MiB below 0.1 GiB."""
    if abs(size) < GIB / 10:
        return f"{size / 2**20:.3g} MiB"
    value = size / GIB
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:,.{digits}f} GiB"


def _seconds(seconds: float) -> str:
    """Format seconds: 1.25 s; 12.5 ms below 0.1 s."""
    if seconds < 0.0995:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:,.3g} s"
