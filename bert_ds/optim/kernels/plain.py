"""LAMB in a few tensor operations: the reference that every faster kernel is tested against."""

from __future__ import annotations

import torch

from bert_ds.optim.kernels.base import (
    ELEMENTS,
    GRADIENT,
    UPDATE,
    WEIGHT,
    Batch,
    Coefficients,
    Finish,
)
from bert_ds.optim.norms import sum_of_squares


def advance_and_direct(
    weight: torch.Tensor,
    gradient: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    c: Coefficients,
) -> torch.Tensor:
    """Advances the moments in place; returns the update direction u. All tensors are [n]."""
    exp_avg.mul_(c.beta1).add_(gradient, alpha=c.beta3)
    exp_avg_sq.mul_(c.beta2).addcmul_(gradient, gradient, value=1.0 - c.beta2)
    denominator = (exp_avg_sq / c.correction2).sqrt_().add_(c.eps)
    update = (exp_avg / c.correction1).div_(denominator)
    return update.add_(weight, alpha=c.weight_decay)


class PlainKernel:
    """Works on any device and in any float type; holds u of all slabs for the step's length."""

    name = "plain"
    advance_and_direct = staticmethod(advance_and_direct)

    def begin(self, batch: Batch, sums: torch.Tensor) -> Finish:
        """As `Kernel.begin`."""
        updates = []
        for slab in batch.slabs:
            gradient = slab.gradient
            if batch.divisor is not None:
                gradient = gradient / batch.divisor
            update = self.advance_and_direct(
                slab.weight, gradient, slab.exp_avg, slab.exp_avg_sq, batch.coefficients
            )
            for fragment in slab.fragments:
                column = sums[:, fragment.parameter]
                column[WEIGHT] += sum_of_squares(fragment.of(slab.weight))
                column[UPDATE] += sum_of_squares(fragment.of(update))
                column[GRADIENT] += sum_of_squares(fragment.of(gradient))
                column[ELEMENTS] += fragment.numel
            updates.append(update)

        def finish(multipliers: torch.Tensor) -> None:
            for slab, update in zip(batch.slabs, updates, strict=True):
                for fragment in slab.fragments:
                    scaled = fragment.of(update).mul_(multipliers[fragment.parameter])
                    fragment.of(slab.weight).sub_(scaled)

        return finish
