"""The interface of a rule: an optimizer's arithmetic, apart from where its tensors lie.

A rule knows neither ZeRO nor ranks nor devices. It turns the settings of a parameter group and the
number t of an update into numbers, and those into a step of every parameter w of the group:

    rule = SomeRule.at(group, t)
    u, *others = rule.advance(w, g, m, v)       by element; moves the moments m and v
    r = rule.factors(sums)                      by parameter, from sums over all its elements
    w <- w - rule.step_size * r * u

`bert_ds.optim.optimizer` drives a rule, kernels (`bert_ds.optim.kernels`) compute it. A new
optimizer is one file: its rule, and a subclass of `RuleOptimizer` with its settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import torch

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Names of m and v in an optimizer's state and in checkpoints."""

WEIGHT, UPDATE, GRADIENT, ELEMENTS = range(4)
"""Rows of the sums by parameter: squares of w, u and g, and how many elements were counted. Squares
of the `others` of a rule follow from row NUM_SUMS on."""
NUM_SUMS = 4


class Rule(Protocol):
    """The numbers of one parameter group at one update, and the formulae that they go into."""

    title: ClassVar[str]
    """The optimizer's name in messages."""
    num_others: ClassVar[int]
    """Tensors that `advance` returns besides u."""

    @staticmethod
    def fault_of(settings: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the settings of a group, or None."""

    @classmethod
    def at(cls, group: dict[str, Any], step: int) -> Rule:
        """Return the numbers of a group at update `step` = 1, 2, ... of its tensors."""

    @property
    def step_size(self) -> float:
        """The learning rate, with all that multiplies u besides the factor."""

    @property
    def is_exempt(self) -> bool:
        """Whether the factor is 1 by definition."""

    @property
    def fused_kernels(self) -> tuple[str, ...]:
        """Names of the hand-written kernels that compute this rule; the plain one computes any."""

    def advance(
        self,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        exp_avg: torch.Tensor,
        exp_avg_sq: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Advance the moments in place; return u, then what else the factor needs squares of.

        All tensors are [n]. Elements may be padding, so no element may affect another.

        Args:
            weight: w.
            gradient: g, clipped.
            exp_avg: m, overwritten.
            exp_avg_sq: v, overwritten.
        """

    def factors(self, sums: torch.Tensor) -> torch.Tensor:
        """Return the factor of each parameter; it may depend on settings, but not on the step.

        Args:
            sums: float64 [NUM_SUMS + num_others, P] over all ranks; zeros where a parameter was
                not stepped.

        Returns:
            float64 [P].
        """
