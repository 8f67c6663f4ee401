"""Batch arithmetic: train_batch_size = micro_batch_size x gradient_accumulation_steps x world_size.

It is computed in this one place and never reassigned. `train_batch_size` and the micro batch come
from the DeepSpeed JSON, the world size from the launcher; the accumulation follows.
"""

from __future__ import annotations

from dataclasses import dataclass

from bert_ds.errors import ConfigError


@dataclass(frozen=True)
class BatchPlan:
    """How one update's rows are split over ranks and micro batches."""

    train_batch_size: int
    """Sequences per update, all ranks."""
    micro_batch_size: int
    """Sequences per rank per forward."""
    gradient_accumulation_steps: int
    """Micro batches per update."""
    world_size: int
    """Ranks of the run."""

    @property
    def sequences_per_rank(self) -> int:
        """The sequences of one update that one rank computes."""
        return self.micro_batch_size * self.gradient_accumulation_steps


def plan_batch(
    train_batch_size: int,
    micro_batch_size: int,
    world_size: int,
    phase: str,
    stated_accumulation: int | None = None,
) -> BatchPlan:
    """Derive the accumulation from batch sizes and a world size.

    Args:
        train_batch_size: sequences per update, all ranks.
        micro_batch_size: sequences per rank per forward.
        world_size: ranks of the run.
        phase: name of the phase, for messages.
        stated_accumulation: the accumulation in the DeepSpeed JSON; None where it has none.

    Raises:
        ConfigError: the sizes do not divide, or give another accumulation than the stated one.
    """
    step = micro_batch_size * world_size
    if train_batch_size % step:
        raise ConfigError(_does_not_divide(train_batch_size, micro_batch_size, world_size, phase))
    accumulation = train_batch_size // step
    if stated_accumulation not in (None, accumulation):
        raise ConfigError(
            f"{phase}: gradient_accumulation_steps ({stated_accumulation!r}) must be "
            f"train_batch_size ({train_batch_size}) / (train_micro_batch_size_per_gpu "
            f"({micro_batch_size}) x world_size ({world_size})) = {accumulation}; leave it out, it "
            "is derived"
        )
    return BatchPlan(train_batch_size, micro_batch_size, accumulation, world_size)


def _does_not_divide(train: int, micro: int, world_size: int, phase: str) -> str:
    step = micro * world_size
    below, above = train // step * step, (train // step + 1) * step
    nearest = f"{below} or {above}" if below else str(above)
    message = (
        f"{phase}: train_batch_size ({train}) must be a multiple of "
        f"train_micro_batch_size_per_gpu ({micro}) x world_size ({world_size}) = {step}; "
        f"set train_batch_size to {nearest}"
    )
    if train % world_size:
        return (
            f"{message}, or take another number of ranks (no micro batch fits: {train} is no "
            f"multiple of {world_size})"
        )
    rows = train // world_size
    divisors = [m for m in range(1, rows + 1) if rows % m == 0]
    smaller = [str(m) for m in divisors if m < micro][-1:]
    larger = [str(m) for m in divisors if m > micro][:1]
    fitting = " or ".join(smaller + larger)
    return message + f", or keep it and set train_micro_batch_size_per_gpu to {fitting}"
