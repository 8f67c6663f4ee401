"""From a parameter or shard, with its gradient and moments, to the flat views that kernels take."""

from __future__ import annotations

from typing import Any

import torch

from bert_ds.errors import ConfigError
from bert_ds.optim.kernels.base import Slab
from bert_ds.optim.layout import Fragment


def make_slab(
    tensor: torch.Tensor,
    state: dict[str, Any],
    fragments: tuple[Fragment, ...],
    *,
    is_gradient_spare: bool,
) -> Slab:
    """A tensor with its gradient and moments as flat views, in the order they have in memory.

    Args:
        tensor: whole parameter or shard, with a gradient.
        state: its `exp_avg` and `exp_avg_sq`, laid out as it is.
        fragments: what lies in it.
        is_gradient_spare: whether the step may overwrite the gradient.

    Raises:
        ConfigError: the gradient is sparse, or elements of the tensor overlap or have gaps.
    """
    assert tensor.grad is not None
    gradient = tensor.grad
    if gradient.layout != torch.strided:
        raise ConfigError(
            f"LAMB needs dense gradients, and a tensor of shape {tuple(tensor.shape)} has one of "
            f"layout {gradient.layout}; use sparse=False in its embedding"
        )
    if gradient.dtype != tensor.dtype or gradient.stride() != tensor.stride():
        gradient = torch.empty_like(tensor).copy_(gradient)
        is_gradient_spare = True
    for moment in ("exp_avg", "exp_avg_sq"):  # the tensor may have been laid out anew since
        if state[moment].stride() != tensor.stride():
            state[moment] = torch.empty_like(tensor).copy_(state[moment])
    return Slab(
        _flat(tensor),
        _flat(gradient),
        _flat(state["exp_avg"]),
        _flat(state["exp_avg_sq"]),
        fragments,
        is_gradient_spare,
    )


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All elements in the order of memory, as a view: [n]."""
    if tensor.is_contiguous():
        return tensor.detach().view(-1)
    strides = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    expected = 1
    for stride, size in strides:
        if size != 1 and stride != expected:
            raise ConfigError(
                f"LAMB cannot update a tensor of shape {tuple(tensor.shape)} and strides "
                f"{tensor.stride()}: its elements overlap or have gaps; make it contiguous"
            )
        expected *= size
    return tensor.detach().as_strided((tensor.numel(),), (1,))
