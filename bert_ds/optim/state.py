"""An optimizer's state by parameter name, for checkpoints that know no layout."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from bert_ds.errors import CheckpointError
from bert_ds.optim.optimizer import RuleOptimizer
from bert_ds.optim.rule import MOMENTS


def optimizer_tensors(optimizer: RuleOptimizer) -> dict[str, torch.Tensor]:
    """Return the moments of every parameter, as `<moment>/<parameter name>`.

    Where the optimizer is bound to a layout all ranks call this together, and the group's first
    rank gets the whole tensors. Where it is not, these are the moments themselves, and those of
    parameters that were never updated are left out.
    """
    layout = optimizer.layout
    tensors: dict[str, torch.Tensor] = {}
    for moment in MOMENTS:
        flats = {
            id(shard.tensor): state[moment].detach()
            for shard in layout.shards
            if (state := optimizer.state.get(shard.tensor))
        }
        tensors |= {f"{moment}/{name}": whole for name, whole in layout.gather(flats).items()}
    return tensors


def optimizer_step(optimizer: RuleOptimizer) -> int:
    """Return how many updates the optimizer has counted; 0 before the first."""
    return max((int(state["step"]) for state in optimizer.state.values() if state), default=0)


def load_optimizer_tensors(
    optimizer: RuleOptimizer, tensors: Mapping[str, torch.Tensor], step: int
) -> None:
    """Put saved moments into a fresh optimizer.

    Args:
        optimizer: Its state is replaced. Where it is bound to a layout, each rank takes its
            fragments.
        tensors: Whole moments, as `optimizer_tensors` returns them.
        step: Count of updates to continue from; 0 restarts the bias correction.

    Raises:
        CheckpointError: A moment is missing, or has another shape than its parameter.
    """
    layout = optimizer.layout
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
