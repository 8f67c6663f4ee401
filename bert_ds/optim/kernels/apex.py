"""NVIDIA apex's own LAMB kernels, where `amp_C` can be imported.

`multi_tensor_lamb` takes norms inside and fits whole parameters alone. So its two halves are
called: stage 1 (moments and u), norms by tensor, and stage 2 with our trust ratios as its parameter
norms and 1 as its update norms. As apex declares them (csrc/amp_C_frontend.cpp):

    multi_tensor_lamb_stage1_cuda(chunk_size, noop_flag, [g, w, m, v, u], decay by tensor, step,
                                  beta1, beta2, eps, global_grad_norm, max_global_grad_norm)
    multi_tensor_l2norm(chunk_size, noop_flag, [x], per_tensor) -> total, by tensor
    multi_tensor_lamb_stage2_cuda(chunk_size, noop_flag, [w, u], parameter norms, update norms, lr,
                                  weight_decay, use_nvlamb)

Stage 1 counts step + 1 in its bias correction, which it always applies, and reads the global norm
on the host. Stage 2 takes 1 for a ratio where a norm is 0.
"""

from __future__ import annotations

from typing import Any

import torch

from bert_ds.errors import ConfigError
from bert_ds.optim.kernels.base import ApplyUpdate, StepInputs
from bert_ds.optim.lamb_rule import LambRule
from bert_ds.optim.rule import ELEMENTS, GRADIENT, UPDATE, WEIGHT

CHUNK = 2048 * 32


class ApexKernel:
    """LAMB in float32 on NVIDIA GPUs by apex; it keeps u of all tensors during a step."""

    name = "apex"

    def __init__(self, amp_c: Any) -> None:
        """Take apex's module `amp_C`."""
        self._amp_c = amp_c

    def begin(self, inputs: StepInputs, sums: torch.Tensor) -> ApplyUpdate:
        """Advance the moments and add to the sums, see `Kernel.begin`."""
        c = inputs.rule
        assert isinstance(c, LambRule)
        if self.name not in c.fused_kernels:
            raise ConfigError(
                "a parameter group has other options than those that LAMB's kernel was chosen by, "
                "and apex cannot compute them; set kernel to triton or plain"
            )
        pairs = [
            (t, fragment) for t in inputs.tensors for fragment in t.fragments if fragment.numel
        ]
        if not pairs:
            return lambda multipliers: None
        device = inputs.tensors[0].weight.device
        gradients = [fragment.of(flat.gradient) for flat, fragment in pairs]
        weights = [fragment.of(flat.weight) for flat, fragment in pairs]
        exp_avgs = [fragment.of(flat.exp_avg) for flat, fragment in pairs]
        exp_avg_sqs = [fragment.of(flat.exp_avg_sq) for flat, fragment in pairs]
        updates = [torch.empty_like(weight) for weight in weights]
        parameters = torch.tensor([f.parameter for _, f in pairs], device=device)
        noop = torch.zeros(1, dtype=torch.int32, device=device)
        clipping = inputs.divisor
        divisor = torch.ones(1) if clipping is None else clipping.float().reshape(1).cpu()

        self._amp_c.multi_tensor_lamb_stage1_cuda(
            CHUNK, noop, [gradients, weights, exp_avgs, exp_avg_sqs, updates],
            torch.full((len(pairs),), c.weight_decay, dtype=torch.float32, device=device),
            c.step - 1, c.beta1, c.beta2, c.eps, divisor, 1.0,
        )  # fmt: skip
        squares = [self._squares(noop, tensors) for tensors in (weights, updates, gradients)]
        squares[GRADIENT] = squares[GRADIENT] / divisor.to(device).double().square()
        for row in (WEIGHT, UPDATE, GRADIENT):
            sums[row].index_add_(0, parameters, squares[row])
        numels = [float(fragment.numel) for _, fragment in pairs]
        sums[ELEMENTS].index_add_(
            0, parameters, torch.tensor(numels, dtype=torch.float64, device=device)
        )

        def apply_update(multipliers: torch.Tensor) -> None:
            if c.step_size == 0.0:
                return
            ratios = (multipliers[parameters] / c.step_size).float()
            self._amp_c.multi_tensor_lamb_stage2_cuda(
                CHUNK, noop, [weights, updates], ratios, torch.ones_like(ratios), c.step_size,
                c.weight_decay, True,
            )  # fmt: skip

        return apply_update

    def _squares(self, noop: torch.Tensor, tensors: list[torch.Tensor]) -> torch.Tensor:
        """Return sums of squares by tensor, float64 [F]."""
        _, norms = self._amp_c.multi_tensor_l2norm(CHUNK, noop, [tensors], True)
        squares: torch.Tensor = norms.double().square()
        return squares
