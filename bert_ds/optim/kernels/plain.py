"""Any rule in tensor operations: the reference that every faster kernel is tested against."""

from __future__ import annotations

import torch

from bert_ds.optim.kernels.base import ApplyUpdate, FlatTensors, StepInputs
from bert_ds.optim.norms import sum_of_squares
from bert_ds.optim.rule import ELEMENTS, GRADIENT, NUM_SUMS, UPDATE, WEIGHT, Rule


class PlainKernel:
    """Works on any device and in any float type; holds u of all tensors for the step's length."""

    name = "plain"

    def begin(self, inputs: StepInputs, sums: torch.Tensor) -> ApplyUpdate:
        """As `Kernel.begin`."""
        updates = []
        for flat in inputs.tensors:
            gradient = flat.gradient
            if inputs.divisor is not None:
                gradient = gradient / inputs.divisor
            update, *others = self.advance(inputs.rule, flat, gradient)
            squared = [(WEIGHT, flat.weight), (UPDATE, update), (GRADIENT, gradient)]
            squared += enumerate(others, start=NUM_SUMS)
            for fragment in flat.fragments:
                column = sums[:, fragment.parameter]
                for row, tensor in squared:
                    column[row] += sum_of_squares(fragment.of(tensor))
                column[ELEMENTS] += fragment.numel
            updates.append(update)

        def apply_update(multipliers: torch.Tensor) -> None:
            for flat, update in zip(inputs.tensors, updates, strict=True):
                for fragment in flat.fragments:
                    scaled = fragment.of(update).mul_(multipliers[fragment.parameter])
                    fragment.of(flat.weight).sub_(scaled)

        return apply_update

    def advance(
        self, rule: Rule, flat: FlatTensors, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Compute the rule's part by element; `gradient` is the clipped one."""
        return rule.advance(flat.weight, gradient, flat.exp_avg, flat.exp_avg_sq)
