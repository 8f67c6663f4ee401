"""Dropout (Srivastava et al. 2014): torch's own on GPUs, a fused kernel on CPUs."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from bert_ds.model.cpu.dropout import dropout as cpu_dropout


class Dropout(nn.Module):
    """Zeroes each element with probability `p` in training, and scales the others to match."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Same shape and dtype as `x`."""
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        """What print shows."""
        return f"p={self.p}"


def dropout(x: torch.Tensor, p: float) -> torch.Tensor:
    """Dropout of any tensor.

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
