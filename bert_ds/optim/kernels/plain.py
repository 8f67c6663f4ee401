"""The reference kernel: any rule in tensor operations. Every faster kernel is tested against it."""

from __future__ import annotations

import torch

from bert_ds.optim.kernels.base import ApplyUpdate, FlatTensors, StepInputs
from bert_ds.optim.norms import sum_of_squares
from bert_ds.optim.rule import ELEMENTS, GRADIENT, NUM_SUMS, UPDATE, WEIGHT, Rule


class PlainKernel:
    """A kernel for any device and any float type; it keeps u of all tensors during a step."""

    name = "plain"

    def begin(self, inputs: StepInputs, sums: torch.Tensor) -> ApplyUpdate:
        """Advance the moments and add to the sums, see `Kernel.begin`."""
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
        """Compute the rule's part by element, see `Rule.advance`.

        Args:
            rule: The formulae.
            flat: Weight and moments; the moments are overwritten.
            gradient: The clipped gradient.
        """
        return rule.advance(flat.weight, gradient, flat.exp_avg, flat.exp_avg_sq)
