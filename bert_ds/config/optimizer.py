"""The `optimizer` section of a DeepSpeed JSON, checked.

It has DeepSpeed's own keys and spelling, so that one file holds all settings. LAMB is apex's unless
`variant` is `deepspeed` (`bert_ds.optim.lamb_rule` has the differences), and so are the defaults of
what a file leaves out. The names and ranges of settings have their one home here.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, Literal, TypeAlias, get_args

from pydantic import Field, ValidationError, model_validator

from bert_ds.config.base import FrozenConfig
from bert_ds.config.messages import describe_validation_error, nearest_known
from bert_ds.errors import ConfigError

LambVariant: TypeAlias = Literal["apex", "deepspeed"]
KernelName: TypeAlias = Literal["auto", "plain", "cpu", "triton", "apex"]

LAMB_TYPES = ("Lamb", "FusedLamb")
SECTION_KEYS = ("type", "params")

DEFAULTS_OF_DEEPSPEED = {"eps": 1e-8, "weight_decay": 0.0, "max_coeff": 10.0, "min_coeff": 0.01}
"""What DeepSpeed's FusedLamb takes for a key that is left out, where apex's LAMB takes another."""


class LambConfig(FrozenConfig):
    """The `optimizer.params` of a DeepSpeed JSON whose type is Lamb or FusedLamb."""

    lr: float = Field(gt=0.0, allow_inf_nan=False)
    """Peak learning rate."""
    variant: LambVariant = "apex"
    """Whose LAMB: apex's, or that of DeepSpeed's FusedLamb, with its defaults."""
    kernel: KernelName = "auto"
    """What computes a step; auto takes the fastest that works where the weights lie."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the first and second moment, each in [0, 1)."""
    eps: float = 1e-6
    """Added to the denominator. 1e-8 by default for the variant deepspeed."""
    weight_decay: float = 0.01
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
        lowest, highest = self.trust_ratio_bounds or (0.0, inf)
        if lowest > highest:
            raise ValueError(f"min_coeff ({lowest}) must not exceed max_coeff ({highest})")
        if fault := lamb_fault(self.arguments):
            raise ValueError(fault)
        return self

    @property
    def arguments(self) -> dict[str, Any]:
        """The settings as keyword arguments of `bert_ds.optim.Lamb`."""
        named = self.model_dump(exclude={"max_coeff", "min_coeff"})
        return {**named, "trust_ratio_bounds": self.trust_ratio_bounds}

    @property
    def trust_ratio_bounds(self) -> tuple[float, float] | None:
        """The pair (min_coeff, max_coeff), an absent one open; None where both are absent."""
        if self.min_coeff is None and self.max_coeff is None:
            return None
        return (
            0.0 if self.min_coeff is None else self.min_coeff,
            inf if self.max_coeff is None else self.max_coeff,
        )


def lamb_fault(settings: Mapping[str, Any]) -> str | None:
    """Return what is wrong with LAMB's settings, or None.

    Args:
        settings: By name of the arguments of `bert_ds.optim.Lamb`.
    """
    betas, bounds = settings["betas"], settings["trust_ratio_bounds"]
    lowest, highest = bounds or (0.0, inf)
    are_in_range = len(betas) == 2 and all(0.0 <= beta < 1.0 for beta in betas)
    rules = (
        [
            (name, 0.0 <= settings[name] < inf, "finite and at least 0")
            for name in ("lr", "eps", "weight_decay")
        ]
        + [
            ("betas", are_in_range, "two, each at least 0 and below 1"),
            ("trust_ratio_bounds", 0.0 <= lowest <= highest > 0.0, "0 <= lowest <= highest > 0"),
            (
                "max_grad_norm",
                0.0 <= settings.get("max_grad_norm", 0.0) < inf,
                "0 (off) or positive",
            ),
        ]
        + [
            (name, settings[name] in get_args(known), f"one of {', '.join(get_args(known))}")
            for name, known in (("variant", LambVariant), ("kernel", KernelName))
        ]
    )
    for name, holds, rule in rules:
        if not holds:
            return f"{name} must be {rule}, not {settings[name]!r}"
    if settings["variant"] == "deepspeed" and (
        settings["use_nvlamb"] or not settings["grad_averaging"]
    ):
        return (
            "variant deepspeed has neither use_nvlamb (every parameter has a trust ratio) nor "
            "grad_averaging=False; leave them out, or set variant to apex"
        )
    return None


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
        raise ConfigError('optimizer.params is missing; it needs at least {"lr": ...}')
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
