"""From a parameter group of LAMB to the numbers of one step; the formulae are in `lamb`."""

from __future__ import annotations

import math
from typing import Any

from bert_ds.optim.kernels.base import Coefficients


def coefficients_of(group: dict[str, Any], step: int) -> Coefficients:
    """The numbers of a group at update `step` = 1, 2, ... of its tensors."""
    beta1, beta2 = group["betas"]
    correction1 = correction2 = 1.0
    if group["bias_correction"]:
        correction1, correction2 = 1.0 - beta1**step, 1.0 - beta2**step
    is_deepspeed = group["variant"] == "deepspeed"
    factor = math.sqrt(correction2) / correction1 if is_deepspeed else 1.0
    lowest, highest = group["trust_ratio_bounds"] or (0.0, math.inf)
    return Coefficients(
        step=step,
        beta1=beta1,
        beta2=beta2,
        beta3=1.0 - beta1 if group["grad_averaging"] else 1.0,
        correction1=1.0 if is_deepspeed else correction1,
        correction2=1.0 if is_deepspeed else correction2,
        eps=group["eps"],
        weight_decay=group["weight_decay"],
        step_size=group["lr"] * factor,
        lowest=lowest,
        highest=highest,
        is_exempt=is_exempt(group),
    )


def is_exempt(group: dict[str, Any]) -> bool:
    """Whether the trust ratios of a group are 1."""
    is_decayed = group["weight_decay"] != 0.0
    return not (group["variant"] == "deepspeed" or is_decayed or group["use_nvlamb"])
