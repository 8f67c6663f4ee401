"""Dropout (Srivastava et al. 2014): torch's own on GPUs, a fused kernel on CPUs."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from bert_ds.model.cpu.dropout import dropout as cpu_dropout


class Dropout(nn.Module):
    """Dropout: zero with probability `p` in training, the other elements scaled to match."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x` after dropout in training, and `x` itself in evaluation."""
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        """Return the text that printing the module shows in its parentheses."""
        return f"p={self.p}"


def dropout(x: torch.Tensor, p: float) -> torch.Tensor:
    """Apply dropout to a tensor, whether in training or not.

    Args:
        x: any shape.
        p: probability of zero, in [0, 1).
    """
    if p == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, p)
    dropped: torch.Tensor = cpu_dropout(x, p)[0]
    return dropped
