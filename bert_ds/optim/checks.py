"""What LAMB refuses: values out of range, groups whose trust ratios would be meaningless."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias, get_args

import torch

from bert_ds.errors import ConfigError
from bert_ds.optim.kernels import KERNEL_NAMES

Variant: TypeAlias = Literal["apex", "deepspeed"]


def names_of(index: int, group: dict[str, Any]) -> list[str]:
    """The names of a group's parameters, or `group.position` where it carries none."""
    if "names" in group:
        return list(group["names"])
    return [f"{index}.{position}" for position in range(len(group["params"]))]


def check_group(index: int, group: dict[str, Any], numels: tuple[int, ...]) -> None:
    """Refuse groups on which a per-tensor trust ratio would be meaningless or imprecise.

    Args:
        index: number of the group.
        group: as it is now.
        numels: elements of its parameters as it was made.

    Raises:
        ConfigError: says what has become of the group.
    """
    num_names, num_tensors = len(names_of(index, group)), len(group["params"])
    if num_names != num_tensors:
        raise ConfigError(
            f"LAMB's group {index} was built from {num_names} named parameters and now holds "
            f"{num_tensors} tensors: the engine has flattened them, and one trust ratio over a "
            "flat tensor is wrong; use ZeRO stage 0 in float32."
        )
    if tuple(parameter.numel() for parameter in group["params"]) != numels:
        raise ConfigError(
            f"LAMB's group {index} holds tensors of other sizes than those it was made with: an "
            "engine has put shards in place of parameters, and a trust ratio over a shard is "
            "wrong; bind the optimizer to its layout, or make it anew for the new tensors."
        )
    for name, parameter in zip(names_of(index, group), group["params"], strict=True):
        if parameter.dtype not in (torch.float32, torch.float64):
            raise ConfigError(
                f"LAMB needs float32 parameters, and {name} is {parameter.dtype}: small updates "
                "would round to nothing; give it float32 master weights."
            )


def check_choices(variant: str, kernel: str, use_nvlamb: bool, grad_averaging: bool) -> None:
    """Refuse a variant or kernel that is not known, and options that the variant has not.

    Raises:
        ConfigError: says which.
    """
    if variant not in get_args(Variant):
        known = ", ".join(get_args(Variant))
        raise ConfigError(f"LAMB's variant must be one of {known}, not {variant!r}.")
    if kernel not in KERNEL_NAMES:
        raise ConfigError(
            f"LAMB's kernel must be one of {', '.join(KERNEL_NAMES)}, not {kernel!r}."
        )
    if variant == "deepspeed" and (use_nvlamb or not grad_averaging):
        raise ConfigError(
            "LAMB's variant 'deepspeed' has neither use_nvlamb (every parameter has a trust ratio) "
            "nor grad_averaging=False; leave them out, or take the variant 'apex'."
        )


def check_ranges(
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    trust_ratio_bounds: tuple[float, float] | None,
    max_grad_norm: float,
) -> None:
    rules = [
        ("lr", lr, 0.0 <= lr < math.inf, "finite and at least 0"),
        ("betas", betas, len(betas) == 2 and all(0.0 <= b < 1.0 for b in betas), "two in [0, 1)"),
        ("eps", eps, 0.0 <= eps < math.inf, "finite and at least 0"),
        ("weight_decay", weight_decay, 0.0 <= weight_decay < math.inf, "finite and at least 0"),
        ("max_grad_norm", max_grad_norm, 0.0 <= max_grad_norm < math.inf, "0 (off) or positive"),
    ]
    if trust_ratio_bounds is not None:
        lowest, highest = trust_ratio_bounds
        is_interval = 0.0 <= lowest <= highest and highest > 0.0
        rules.append(
            (
                "trust_ratio_bounds",
                trust_ratio_bounds,
                is_interval,
                "0 <= lowest <= highest, highest above 0",
            )
        )
    for name, value, holds, rule in rules:
        if not holds:
            raise ConfigError(f"LAMB's {name} must be {rule}, not {value}.")
