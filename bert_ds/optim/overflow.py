"""Find the parameters whose gradients overflow, for the message of a run that must end for it.

Under fp16 an update whose gradients overflow is skipped and the loss scale lowered. A run that has
diverged skips without end, or until the scale is at its floor. By then the engine has discarded the
gradients; so while the next skip would be the last, hooks check each parameter's gradient as
backward computes it. At all other times there are no hooks and nothing is checked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from bert_ds.optim.layout import all_reduce_sum

MOST_NAMES = 5
"""Parameters that the message names."""


class OverflowWatch:
    """A counter of skipped updates in a row; it watches the gradients of the last allowed one."""

    def __init__(self, model: nn.Module, max_skipped_in_a_row: int, lowest_scale: float) -> None:
        """Start with no skips.

        Args:
            model: The model whose parameters are watched.
            max_skipped_in_a_row: Skips after which the run ends.
            lowest_scale: Loss scale at which another overflow ends the run; 0 where there is none.
        """
        self._parameters = [p for p in model.named_parameters() if p[1].requires_grad]
        self._max_skipped = max_skipped_in_a_row
        self._lowest_scale = lowest_scale
        self._num_skipped = 0
        self._handles: list[RemovableHandle] = []
        self._order: list[int] = []
        self._flags: torch.Tensor | None = None

    def before_backward(self, loss_scale: float) -> None:
        """Set or remove the hooks; call it before each backward pass."""
        is_last = self._num_skipped + 1 >= self._max_skipped or loss_scale <= self._lowest_scale
        if is_last and not self._handles:
            device = self._parameters[0][1].device
            self._flags = torch.zeros(len(self._parameters), dtype=torch.float64, device=device)
            self._handles = [
                _hook(parameter, functools.partial(self._check, number))
                for number, (_, parameter) in enumerate(self._parameters)
            ]
        elif not is_last and self._handles:
            self._stop_watching()

    def after_update(self, *, was_applied: bool) -> bool:
        """Count an update; call it after each.

        Returns:
            Whether as many updates in a row have been skipped as are allowed.
        """
        self._num_skipped = 0 if was_applied else self._num_skipped + 1
        if was_applied and self._flags is not None:
            self._flags.zero_()
        return self._num_skipped >= self._max_skipped

    def describe(self) -> str:
        """Return which gradients overflowed in the watched update. All ranks call it together."""
        flags, order = self._flags, self._order
        if flags is None:
            return "their parameters were not watched"
        all_reduce_sum(flags, None)
        overflowed = [number for number in order if flags[number].item() > 0.0]
        self._stop_watching()
        if not overflowed:
            return "each gradient by itself is finite, their sum over micro batches or ranks is not"
        names = ", ".join(self._parameters[number][0] for number in overflowed[:MOST_NAMES])
        return (
            f"the gradients of {len(overflowed)} of {len(self._parameters)} parameters overflow, "
            f"nearest to the loss: {names}"
        )

    def _check(self, number: int, gradient: torch.Tensor) -> None:
        assert self._flags is not None
        if number not in self._order:
            self._order.append(number)
        self._flags[number] += (~gradient.isfinite()).any()

    def _stop_watching(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._order, self._flags = [], [], None


def _hook(parameter: nn.Parameter, check: Callable[[torch.Tensor], None]) -> RemovableHandle:
    register: Any = parameter.register_hook  # torch does not annotate it
    handle: RemovableHandle = register(check)
    return handle
