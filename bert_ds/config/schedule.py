"""The learning-rate schedules that a phase can ask for; their formulae are in `optim.schedule`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bert_ds.config.base import FrozenConfig

WarmupProportion = Annotated[float, Field(ge=0.0, lt=1.0)]


class PolynomialSchedule(FrozenConfig):
    """Linear warm-up to the peak, then polynomial decay that starts from the peak."""

    kind: Literal["polynomial"] = "polynomial"
    """Name of the schedule."""
    warmup_proportion: WarmupProportion = 0.0
    """Share of total_steps spent warming up."""
    power: float = Field(default=0.5, gt=0.0)
    """Exponent of the decay."""


class LinearSchedule(FrozenConfig):
    """Linear warm-up to the peak, then linear decay, as in the original BERT."""

    kind: Literal["linear"]
    """Name of the schedule."""
    warmup_proportion: WarmupProportion = 0.0
    """Share of total_steps spent warming up."""


class ConstantSchedule(FrozenConfig):
    """Linear warm-up to the peak, which then stays."""

    kind: Literal["constant"]
    """Name of the schedule."""
    warmup_proportion: WarmupProportion = 0.0
    """Share of total_steps spent warming up."""


class NvidiaPolynomialSchedule(FrozenConfig):
    """NVIDIA's PolyWarmUpScheduler, with its jump at the end of the warm-up."""

    kind: Literal["nvidia_polynomial"]
    """Name of the schedule."""
    warmup_proportion: WarmupProportion = 0.0
    """Share of total_steps spent warming up."""
    power: float = Field(default=0.5, gt=0.0)
    """Exponent of the decay."""


class DeepSpeedEESchedule(FrozenConfig):
    """DeepSpeed's "EE": quadratic warm-up, then exponential decay, plus a constant."""

    kind: Literal["deepspeed_ee"]
    """Name of the schedule."""
    warmup_proportion: float = Field(gt=0.0, lt=1.0)
    """Share of total_steps spent warming up. Not 0: the original then never decays at all."""
    decay_rate: float = Field(default=0.9, gt=0.0, le=1.0)
    """Factor by which the learning rate shrinks every decay_steps."""
    decay_steps: int = Field(gt=0)
    """Applied updates over which the learning rate shrinks by decay_rate."""
    offset: float = Field(default=0.0, ge=0.0)
    """Added to the learning rate throughout; the true peak is the peak plus this."""


ScheduleConfig = Annotated[
    PolynomialSchedule
    | LinearSchedule
    | ConstantSchedule
    | NvidiaPolynomialSchedule
    | DeepSpeedEESchedule,
    Field(discriminator="kind"),
]
"""Any schedule, selected by `kind`; a key that the kind does not use is an error."""
