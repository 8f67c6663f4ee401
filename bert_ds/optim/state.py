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
        optimizer: its groups carry `names`. Where it is bound to a layout all ranks call this
            together, and the group's first rank gets the whole tensors.
    """
    layout = optimizer.layout
    if layout is None:
        return {
            f"{moment}/{name}": state[moment]
            for name, parameter in _named_parameters(optimizer)
            if (state := optimizer.state.get(parameter))
            for moment in MOMENTS
        }
    tensors: dict[str, torch.Tensor] = {}
    for moment in MOMENTS:
        flats = {id(s.tensor): _moment_of(optimizer, s.tensor, moment) for s in layout.shards}
        tensors |= {f"{moment}/{name}": whole for name, whole in layout.gather(flats).items()}
    return tensors


def optimizer_step(optimizer: Lamb) -> int:
    """Updates that the optimizer has counted; 0 before the first."""
    return max((int(state["step"]) for state in optimizer.state.values() if state), default=0)


def load_optimizer_tensors(optimizer: Lamb, tensors: Mapping[str, torch.Tensor], step: int) -> None:
    """Put saved moments into a fresh optimizer.

    Args:
        optimizer: its groups carry `names`; its state is replaced. Where it is bound to a layout,
            each rank takes its fragments.
        tensors: whole moments, as `optimizer_tensors` gives them.
        step: count of updates to go on from; 0 restarts the bias correction.

    Raises:
        CheckpointError: a moment is missing, or has another shape than its parameter.
    """
    layout = optimizer.layout
    if layout is None:
        for name, parameter in _named_parameters(optimizer):
            state: dict[str, Any] = {"step": step}
            for moment in MOMENTS:
                saved = _saved(tensors, moment, name, parameter.shape)
                state[moment] = torch.empty_like(parameter, requires_grad=False).copy_(saved)
            optimizer.state[parameter] = state
        return
    for shard in layout.shards:
        optimizer.state[shard.tensor] = {
            "step": step,
            **{moment: torch.zeros_like(shard.tensor, requires_grad=False) for moment in MOMENTS},
        }
    for moment in MOMENTS:
        wholes = {
            name: _saved(tensors, moment, name, shape)
            for name, shape in zip(layout.names, layout.shapes, strict=True)
        }
        flats = {id(s.tensor): optimizer.state[s.tensor][moment] for s in layout.shards}
        layout.scatter(wholes, flats)


def _saved(
    tensors: Mapping[str, torch.Tensor], moment: str, name: str, shape: torch.Size
) -> torch.Tensor:
    saved = tensors.get(f"{moment}/{name}")
    if saved is None or saved.shape != shape:
        found = "missing" if saved is None else f"of shape {tuple(saved.shape)}"
        raise CheckpointError(
            f"the checkpoint's {moment} of {name} is {found}; it must have the parameter's "
            f"shape {tuple(shape)}"
        )
    return saved


def _moment_of(optimizer: Lamb, tensor: torch.Tensor, moment: str) -> torch.Tensor:
    """A moment of a flat tensor; zero before its first update."""
    state = optimizer.state.get(tensor)
    found: torch.Tensor = state[moment] if state else torch.zeros_like(tensor)
    return found.detach()


def _named_parameters(optimizer: Lamb) -> Iterator[tuple[str, torch.Tensor]]:
    for group in optimizer.param_groups:
        yield from zip(group["names"], group["params"], strict=True)
