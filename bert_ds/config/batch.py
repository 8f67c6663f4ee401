"""train_batch_size = micro_batch_size x gradient_accumulation_steps x world_size.

Computed in one place and never reassigned. `train_batch_size` and the micro batch come from the
DeepSpeed JSON, the world size from the launcher; the accumulation follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bert_ds.errors import ConfigError


@dataclass(frozen=True)
class BatchPlan:
    """How one update's rows are split over ranks and micro batches.

    Attributes:
        train_batch_size: sequences per update, all ranks.
        micro_batch_size: sequences per rank per forward.
        gradient_accumulation_steps: micro batches per update.
        world_size: ranks.
    """

    train_batch_size: int
    micro_batch_size: int
    gradient_accumulation_steps: int
    world_size: int

    @property
    def sequences_per_rank(self) -> int:
        """Sequences of one update that one rank computes."""
        return self.micro_batch_size * self.gradient_accumulation_steps


def plan_batch(deepspeed: dict[str, Any], world_size: int, phase: str) -> BatchPlan:
    """Derive the accumulation from a DeepSpeed JSON and a world size.

    Args:
        deepspeed: the phase's DeepSpeed configuration.
        world_size: ranks of the run.
        phase: name of the phase, for messages.

    Raises:
        ConfigError: a size is missing or not a positive integer, or the sizes do not divide.
    """
    train = _positive_integer(deepspeed, "train_batch_size", phase)
    micro = _positive_integer(deepspeed, "train_micro_batch_size_per_gpu", phase)
    step = micro * world_size
    if train % step:
        raise ConfigError(_does_not_divide(train, micro, world_size, phase))
    accumulation = train // step
    stated = deepspeed.get("gradient_accumulation_steps", accumulation)
    if stated != accumulation:
        raise ConfigError(
            f"{phase}: gradient_accumulation_steps ({stated!r}) must be train_batch_size ({train}) "
            f"/ (train_micro_batch_size_per_gpu ({micro}) x world_size ({world_size})) = "
            f"{accumulation}; leave it out, it is derived"
        )
    return BatchPlan(train, micro, accumulation, world_size)


def _positive_integer(deepspeed: dict[str, Any], key: str, phase: str) -> int:
    value = deepspeed.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ConfigError(
            f"{phase}: {key} must be a positive integer in the DeepSpeed JSON, it is {value!r}"
        )
    return value


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
