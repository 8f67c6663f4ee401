"""The `optimizer` section of a DeepSpeed JSON, checked.

DeepSpeed's own keys and spelling, so that one file says it all. LAMB is apex's unless `variant`
says `deepspeed` (see `bert_ds.optim.lamb` for how they differ), and so are the defaults of what a
file leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from bert_ds.config.base import FrozenConfig
from bert_ds.config.messages import describe_validation_error, nearest_known
from bert_ds.errors import ConfigError

LAMB_TYPES = ("Lamb", "FusedLamb")
SECTION_KEYS = ("type", "params")

DEFAULTS_OF_DEEPSPEED = {"eps": 1e-8, "weight_decay": 0.0, "max_coeff": 10.0, "min_coeff": 0.01}
"""What DeepSpeed's FusedLamb takes for a key that is left out, where apex's LAMB takes another."""


class LambConfig(FrozenConfig):
    """`optimizer.params` of a DeepSpeed JSON whose type is Lamb or FusedLamb."""

    lr: float = Field(gt=0.0, allow_inf_nan=False)
    """Peak learning rate."""
    variant: Literal["apex", "deepspeed"] = "apex"
    """Whose LAMB: apex's, or that of DeepSpeed's FusedLamb, with its defaults."""
    kernel: Literal["auto", "plain", "cpu", "triton", "apex"] = "auto"
    """What computes a step; auto takes the fastest that works where the weights lie."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the first and second moment, each in [0, 1)."""
    eps: float = Field(default=1e-6, ge=0.0, allow_inf_nan=False)
    """Added to the denominator. 1e-8 by default for the variant deepspeed."""
    weight_decay: float = Field(default=0.01, ge=0.0, allow_inf_nan=False)
    """Decay of all but biases and LayerNorm weights. 0 by default for the variant deepspeed."""
    bias_correction: bool = True
    """Whether the moments are corrected for their start from zero."""
    max_coeff: float | None = Field(default=None, gt=0.0)
    """Highest trust ratio; null for no bound. 10 by default for the variant deepspeed."""
    min_coeff: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    """Lowest trust ratio; null for no bound. 0.01 by default for the variant deepspeed."""
    use_nvlamb: bool = False
    """Whether parameters without weight decay get a trust ratio of their own; apex's alone."""
    grad_averaging: bool = True
    """Whether the gradient enters the first moment with weight 1 - beta1, or with 1; apex's."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_variant(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("variant") == "deepspeed":
            return {**DEFAULTS_OF_DEEPSPEED, **values}
        return values

    @model_validator(mode="after")
    def _values_fit_each_other(self) -> LambConfig:
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError(f"betas ({list(self.betas)}) must both be at least 0 and below 1")
        lowest, highest = self.trust_ratio_bounds or (0.0, float("inf"))
        if lowest > highest:
            raise ValueError(f"min_coeff ({lowest}) must not exceed max_coeff ({highest})")
        if self.variant == "deepspeed" and (self.use_nvlamb or not self.grad_averaging):
            raise ValueError(
                "the variant deepspeed has neither use_nvlamb (every parameter has a trust ratio) "
                "nor grad_averaging: false; leave them out, or take the variant apex"
            )
        return self

    @property
    def trust_ratio_bounds(self) -> tuple[float, float] | None:
        """(min_coeff, max_coeff) with an absent one open, or None where both are absent."""
        if self.min_coeff is None and self.max_coeff is None:
            return None
        return (
            0.0 if self.min_coeff is None else self.min_coeff,
            float("inf") if self.max_coeff is None else self.max_coeff,
        )


def lamb_config(section: Mapping[str, Any]) -> LambConfig:
    """Read and check the `optimizer` section of a DeepSpeed JSON.

    Args:
        section: For example {"type": "Lamb", "params": {"lr": 6e-3, "weight_decay": 0.01}}.

    Raises:
        ConfigError: The type is not LAMB, a key is unknown, or a value is out of its range.
    """
    for key in section:
        if key not in SECTION_KEYS:
            hint = nearest_known(key, SECTION_KEYS)
            raise ConfigError(f"unknown key '{key}' in the DeepSpeed JSON's optimizer; {hint}")
    optimizer_type = section.get("type")
    if optimizer_type not in LAMB_TYPES:
        raise ConfigError(
            f"optimizer.type must be one of {', '.join(LAMB_TYPES)}, not {optimizer_type!r}; "
            f"{nearest_known(str(optimizer_type), LAMB_TYPES)}"
        )
    params = section.get("params")
    if not isinstance(params, Mapping):
        raise ConfigError('optimizer.params is missing; it needs at least {"lr": ...}.')
    if "max_grad_norm" in params:
        raise ConfigError(
            "max_grad_norm stands in optimizer.params, where DeepSpeed refuses it too; set "
            "gradient_clipping at the top level of the DeepSpeed JSON instead."
        )
    try:
        return LambConfig.model_validate(dict(params))
    except ValidationError as err:
        raise ConfigError(
            f"optimizer.params: {describe_validation_error(err, LambConfig)}"
        ) from err
