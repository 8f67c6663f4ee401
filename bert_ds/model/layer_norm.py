"""LayerNorm (Ba et al. 2016, arXiv:1607.06450), by torch's kernel or by NVIDIA apex's.

Both take mean and variance in float32 whatever the precision.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn

from bert_ds.config.model import ModelConfig

Kernel = Callable[..., torch.Tensor]
"""Takes (input, weight, bias, normalized_shape, eps)."""


class LayerNorm(nn.LayerNorm):
    """LayerNorm over the hidden size."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.hidden_size, eps=config.layer_norm_eps)
        self.kernel: Kernel | None = None
        """The function that computes it; None for torch's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension of [..., H]."""
        if self.kernel is None or not x.numel():  # apex's launches no grid of 0 rows
            return super().forward(x)
        return self.kernel(x, self.weight, self.bias, self.normalized_shape, self.eps)


def apex_kernel() -> Kernel:
    """Return NVIDIA apex's fused LayerNorm, for GPUs.

    Raises:
        ImportError: it is not installed with its CUDA extensions. The package called apex on PyPI
            is another project.
    """
    import_module("fused_layer_norm_cuda")  # apex itself imports it at the first call only
    module: Any = import_module("apex.normalization.fused_layer_norm")
    kernel: Kernel = module.fused_layer_norm_affine
    return kernel
