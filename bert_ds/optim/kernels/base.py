"""What every LAMB kernel is given and does: two halves of a step, with the ranks' sum between.

    finish = kernel.begin(batch, sums)     moments; sums of squares of w, u and g by parameter
    ...                                    sums over the ranks; trust ratios
    finish(multipliers)                    w -= multiplier[parameter] * u

The formulae stand in `bert_ds.optim.lamb`. F fragments, P parameters, n elements of a slab.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch

from bert_ds.optim.layout import Fragment

WEIGHT, UPDATE, GRADIENT, ELEMENTS = range(4)
"""Rows of the sums: squares of w, u and g, and how many elements were counted."""


@dataclass(frozen=True)
class Coefficients:
    """The numbers of one parameter group at one step.

    Attributes:
        step: t, updates that the tensors have had, this one included.
        beta1, beta2: decay rates of the moments.
        beta3: weight of the gradient in the first moment.
        correction1, correction2: divisors of the moments inside u; 1 where they are uncorrected.
        eps, weight_decay: as in u.
        step_size: learning rate, with whatever else multiplies u besides the trust ratio.
        lowest, highest: bounds of the trust ratio, open where there are none.
        is_exempt: whether the trust ratio is 1.
    """

    step: int
    beta1: float
    beta2: float
    beta3: float
    correction1: float
    correction2: float
    eps: float
    weight_decay: float
    step_size: float
    lowest: float
    highest: float
    is_exempt: bool

    def ratios(self, sums: torch.Tensor) -> torch.Tensor:
        """Trust ratios ||w|| / ||u||, 1 where a norm is 0 or by exemption, NaN if either is.

        Args:
            sums: float64 [4, ...] over all ranks.

        Returns:
            float64 [...].
        """
        weight_norm, update_norm = sums[WEIGHT].sqrt(), sums[UPDATE].sqrt()
        ratio = (weight_norm / update_norm).clamp(self.lowest, self.highest)
        if self.is_exempt:
            return torch.ones_like(ratio)
        return torch.where((weight_norm == 0.0) | (update_norm == 0.0), 1.0, ratio)


@dataclass(frozen=True)
class Slab:
    """One tensor under update, and what lies in it.

    Attributes:
        weight, gradient, exp_avg, exp_avg_sq: [n], contiguous, of one dtype and device.
        fragments: parts of parameters; what is in none of them is padding.
        is_gradient_spare: whether the step may overwrite the gradient.
    """

    weight: torch.Tensor
    gradient: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    fragments: tuple[Fragment, ...]
    is_gradient_spare: bool


@dataclass(frozen=True)
class Batch:
    """Slabs that share their coefficients, dtype and device.

    Attributes:
        slabs: what to update.
        coefficients: numbers of the step.
        numels: elements of each whole parameter, by its number.
        divisor: float64 scalar on the slabs' device by which gradients are divided, or None.
    """

    slabs: tuple[Slab, ...]
    coefficients: Coefficients
    numels: tuple[int, ...]
    divisor: torch.Tensor | None


Finish: TypeAlias = Callable[[torch.Tensor], None]


class Kernel(Protocol):
    """One way to compute a step."""

    name: str

    def begin(self, batch: Batch, sums: torch.Tensor) -> Finish:
        """Advance the moments and add to the sums.

        A kernel may already move the weights of a parameter that lies whole in one fragment: its
        trust ratio needs no other rank.

        Args:
            batch: what to update.
            sums: float64 [4, P] on the batch's device, added to in the rows named above.

        Returns:
            Called once with float64 [P] on the same device, step size times trust ratio, it moves
            the weights that have not moved.
        """
