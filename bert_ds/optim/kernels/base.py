"""The interface of a kernel: a step in two halves, with the sum over the ranks in between.

    apply_update = kernel.begin(inputs, sums)     moments; sums of squares by parameter
    ...                                           sums over the ranks; factors
    apply_update(multipliers)                     w -= multiplier[parameter] * u

The formulae are those of a rule (`bert_ds.optim.rule`).

Legend: F fragments, P parameters, n elements of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch

from bert_ds.errors import ConfigError
from bert_ds.optim.layout import Fragment
from bert_ds.optim.rule import MOMENTS, Rule


@dataclass(frozen=True)
class FlatTensors:
    """A parameter or shard under update, with its gradient and moments, as flat views.

    All four tensors are [n], contiguous, of one dtype and device, and lie alike.
    """

    weight: torch.Tensor
    """Master weights w."""
    gradient: torch.Tensor
    """Gradient g."""
    exp_avg: torch.Tensor
    """First moment m."""
    exp_avg_sq: torch.Tensor
    """Second moment v."""
    fragments: tuple[Fragment, ...]
    """Parts of parameters; what is in none of them is padding, which no sum may count."""
    may_overwrite_gradient: bool
    """Whether a kernel may use the gradient's memory for something else."""

    @classmethod
    def of(
        cls,
        tensor: torch.Tensor,
        state: dict[str, Any],
        fragments: tuple[Fragment, ...],
        *,
        may_overwrite_gradient: bool,
    ) -> FlatTensors:
        """Flatten a tensor with its gradient and moments, in the order they have in memory.

        Args:
            tensor: Whole parameter or shard, with a gradient.
            state: Its moments. One that does not lie as the tensor does is replaced.
            fragments: Parts of parameters that lie in it.
            may_overwrite_gradient: Whether its gradient is not needed after the step.

        Raises:
            ConfigError: The gradient is sparse, or elements of the tensor overlap or have gaps.
        """
        gradient = tensor.grad
        assert gradient is not None
        if gradient.layout != torch.strided:
            raise ConfigError(
                f"the optimizer needs dense gradients, and a tensor of shape {tuple(tensor.shape)} "
                f"has one of layout {gradient.layout}; use sparse=False in its embedding"
            )
        if gradient.dtype != tensor.dtype or gradient.stride() != tensor.stride():
            gradient = torch.empty_like(tensor).copy_(gradient)
            may_overwrite_gradient = True
        for moment in MOMENTS:  # the tensor may have got other strides since the last step
            if state[moment].stride() != tensor.stride():
                state[moment] = torch.empty_like(tensor).copy_(state[moment])
        exp_avg, exp_avg_sq = (_flat(state[moment]) for moment in MOMENTS)
        return cls(
            _flat(tensor), _flat(gradient), exp_avg, exp_avg_sq, fragments, may_overwrite_gradient
        )


@dataclass(frozen=True)
class StepInputs:
    """The input of one call of a kernel: tensors that share rule, dtype and device."""

    tensors: tuple[FlatTensors, ...]
    """The tensors to update."""
    rule: Rule
    """Formulae, with the numbers of this step."""
    numels: tuple[int, ...]
    """Elements of each whole parameter, by its number."""
    divisor: torch.Tensor | None
    """Float64 scalar on the tensors' device by which gradients are divided, or None."""


ApplyUpdate: TypeAlias = Callable[[torch.Tensor], None]


class Kernel(Protocol):
    """One way to compute a step."""

    name: str
    """Its name in settings and logs."""

    def begin(self, inputs: StepInputs, sums: torch.Tensor) -> ApplyUpdate:
        """Advance the moments and add to the sums.

        A kernel may already move the weights of a parameter that lies whole in one fragment: its
        factor needs no other rank.

        Args:
            inputs: Tensors to update, and the rule.
            sums: Float64 [NUM_SUMS + num_others, P] on the tensors' device, added to in the rows
                that `bert_ds.optim.rule` names.

        Returns:
            A function to be called once with float64 [P] on the same device, step size times
            factor; it moves the weights that have not moved yet.
        """


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return all elements in the order of memory, as a view: [n]."""
    if tensor.is_contiguous():
        return tensor.detach().view(-1)
    strides = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    expected = 1
    for stride, size in strides:
        if size != 1 and stride != expected:
            raise ConfigError(
                f"the optimizer cannot update a tensor of shape {tuple(tensor.shape)} and strides "
                f"{tensor.stride()}: its elements overlap or have gaps; make it contiguous"
            )
        expected *= size
    return tensor.detach().as_strided((tensor.numel(),), (1,))
