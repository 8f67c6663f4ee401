"""LAMB's state by parameter name, for checkpoints that know no layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from bert_ds.errors import CheckpointError
from bert_ds.optim.lamb import Lamb

MOMENTS = ("exp_avg", "exp_avg_sq")


def optimizer_tensors(optimizer: Lamb) -> dict[str, torch.Tensor]:
    """Moments of every parameter that has been updated, as `<moment>/<parameter name>`.

    Args:
        optimizer: its groups carry `names`.
    """
    return {
        f"{moment}/{name}": state[moment]
        for name, _, state in _named_states(optimizer)
        if state
        for moment in MOMENTS
    }


def optimizer_step(optimizer: Lamb) -> int:
    """Updates that the optimizer has counted; 0 before the first."""
    return max((int(s["step"]) for _, _, s in _named_states(optimizer) if s), default=0)


def load_optimizer_tensors(optimizer: Lamb, tensors: Mapping[str, torch.Tensor], step: int) -> None:
    """Put saved moments into a fresh optimizer.

    Args:
        optimizer: its groups carry `names`; its state is replaced.
        tensors: as `optimizer_tensors` gives them.
        step: count of updates to go on from; 0 restarts the bias correction.

    Raises:
        CheckpointError: a moment is missing, or has another shape than its parameter.
    """
    for name, parameter, _ in _named_states(optimizer):
        state: dict[str, Any] = {"step": step}
        for moment in MOMENTS:
            saved = tensors.get(f"{moment}/{name}")
            if saved is None or saved.shape != parameter.shape:
                found = "missing" if saved is None else f"of shape {tuple(saved.shape)}"
                raise CheckpointError(
                    f"the checkpoint's {moment} of {name} is {found}; it must have the parameter's "
                    f"shape {tuple(parameter.shape)}"
                )
            state[moment] = saved.to(device=parameter.device, dtype=parameter.dtype, copy=True)
        optimizer.state[parameter] = state


def _named_states(optimizer: Lamb) -> Iterator[tuple[str, torch.Tensor, dict[str, Any]]]:
    for group in optimizer.param_groups:
        for name, parameter in zip(group["names"], group["params"], strict=True):
            yield name, parameter, optimizer.state.get(parameter, {})
