"""The formulae of LAMB.

You et al. 2020, arXiv:1904.00962, algorithm 2, as NVIDIA's apex computes it (apex,
csrc/multi_tensor_lamb.cu). For parameter w with gradient g at its update t = 1, 2, ...:

    g <- g / max(1, ||g||_global / max_grad_norm)                    if max_grad_norm > 0
    m <- beta1 m + beta3 g           beta3 = 1 - beta1, or 1 without grad_averaging
    v <- beta2 v + (1 - beta2) g^2
    u  = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay w
    r  = ||w|| / ||u||               trust ratio over the whole tensor
    w <- w - lr r u

r is 1 where either norm is 0, and for parameters without weight decay unless `use_nvlamb`.
Without `bias_correction` both denominators 1 - beta^t are 1.

With `variant="deepspeed"` it is LAMB as DeepSpeed's FusedLamb computes it (DeepSpeed 0.19.8,
csrc/lamb/fused_lamb_cuda_kernel.cu), which differs in three places, so that learning rates do not
transfer between the two:

    u  = m / (sqrt(v) + eps) + weight_decay w     moments are never corrected inside u
    w <- w - lr (sqrt(1 - beta2^t) / (1 - beta1^t)) r u      the factor is 1 without bias_correction
    r is taken, and clamped to `trust_ratio_bounds`, for parameters without weight decay too

(Of DeepSpeed's options `eps_inside_sqrt` and `amsgrad` are not offered; its clipping by
`max_grad_norm` is the engine's `gradient_clipping` here.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from bert_ds.config.optimizer import lamb_fault
from bert_ds.optim.rule import UPDATE, WEIGHT


@dataclass(frozen=True)
class LambRule:
    """The numbers of one parameter group at one update, see `bert_ds.optim.rule`."""

    title: ClassVar[str] = "LAMB"
    """The optimizer's name in messages."""
    num_others: ClassVar[int] = 0
    """Tensors that `advance` returns besides u."""

    step: int
    """t, updates that the tensors have had, this one included."""
    beta1: float
    """Decay rate of m."""
    beta2: float
    """Decay rate of v."""
    beta3: float
    """Weight of the gradient in m."""
    correction1: float
    """Divisor of m inside u; 1 where it is uncorrected."""
    correction2: float
    """Divisor of v inside u; 1 where it is uncorrected."""
    eps: float
    """Added to the root of v."""
    weight_decay: float
    """Multiple of w inside u."""
    step_size: float
    """Learning rate, with the variant deepspeed's correction."""
    lowest: float
    """Lowest trust ratio; 0 for no bound."""
    highest: float
    """Highest trust ratio; infinite for no bound."""
    is_exempt: bool
    """Whether the trust ratio is 1 because there is no decay."""

    @staticmethod
    def fault_of(settings: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the settings of a group, or None."""
        return lamb_fault(settings)

    @classmethod
    def at(cls, group: dict[str, Any], step: int) -> LambRule:
        """Return the numbers of a group at update `step` = 1, 2, ... of its tensors."""
        beta1, beta2 = group["betas"]
        correction1 = correction2 = 1.0
        if group["bias_correction"]:
            correction1, correction2 = 1.0 - beta1**step, 1.0 - beta2**step
        is_deepspeed = group["variant"] == "deepspeed"
        factor = math.sqrt(correction2) / correction1 if is_deepspeed else 1.0
        lowest, highest = group["trust_ratio_bounds"] or (0.0, math.inf)
        return cls(
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
            is_exempt=not (is_deepspeed or group["weight_decay"] != 0.0 or group["use_nvlamb"]),
        )

    @property
    def fused_kernels(self) -> tuple[str, ...]:
        """Names of the hand-written kernels for these numbers; apex's always corrects and averages.

        Without `bias_correction` or `grad_averaging`, and for the variant deepspeed, apex's kernel
        would compute something else.
        """
        is_standard = (
            math.isclose(self.correction1, 1.0 - self.beta1**self.step)
            and math.isclose(self.correction2, 1.0 - self.beta2**self.step)
            and self.beta3 == 1.0 - self.beta1
        )
        return ("triton", "cpu", "apex") if is_standard else ("triton", "cpu")

    def advance(
        self,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        exp_avg: torch.Tensor,
        exp_avg_sq: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Advance the moments in place and return u, all [n].

        Args:
            weight: w.
            gradient: g, clipped.
            exp_avg: m, overwritten.
            exp_avg_sq: v, overwritten.
        """
        exp_avg.mul_(self.beta1).add_(gradient, alpha=self.beta3)
        exp_avg_sq.mul_(self.beta2).addcmul_(gradient, gradient, value=1.0 - self.beta2)
        denominator = (exp_avg_sq / self.correction2).sqrt_().add_(self.eps)
        update = (exp_avg / self.correction1).div_(denominator)
        return (update.add_(weight, alpha=self.weight_decay),)

    def factors(self, sums: torch.Tensor) -> torch.Tensor:
        """Return the trust ratio ||w|| / ||u|| of each parameter, float64 [P].

        It is 1 where a norm is 0 or the group is exempt, and NaN where a norm is.

        Args:
            sums: float64 [NUM_SUMS, P], see `Rule.factors`.
        """
        weight_norm, update_norm = sums[WEIGHT].sqrt(), sums[UPDATE].sqrt()
        ratio = (weight_norm / update_norm).clamp(self.lowest, self.highest)
        if self.is_exempt:
            return torch.ones_like(ratio)
        return torch.where((weight_norm == 0.0) | (update_norm == 0.0), 1.0, ratio)
