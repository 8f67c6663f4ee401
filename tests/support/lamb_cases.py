"""Steps of a LAMB kernel on small batches, for comparison with the plain one."""

from __future__ import annotations

import math
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch

from bert_ds.optim.kernels.base import FlatTensors, Kernel, StepInputs
from bert_ds.optim.lamb_rule import LambRule
from bert_ds.optim.layout import Fragment

NUM_STEPS = 3
SIZES = (1, 0, 7, 255, 256, 257, 4096, 70_000, 300_001)
"""Elements of parameters: none, less than a row, whole rows, more than one thread takes at once."""

PADDING = 1e31
"""What ZeRO 3 may leave between parameters: memory that nobody has set."""

CASES: dict[str, dict[str, Any]] = {
    "standard": {},
    "no decay, exempt": {"weight_decay": 0.0, "is_exempt": True},
    "no decay, nvlamb": {"weight_decay": 0.0},
    "bounds": {"lowest": 0.02, "highest": 0.05},
    "uncorrected": {"correction1": 1.0, "correction2": 1.0, "beta3": 1.0},
    "clipped": {"divisor": 3.7},
    "no eps": {"eps": 0.0},
    "zero learning rate": {"step_size": 0.0},
}


def rule_at(step: int, **changes: Any) -> LambRule:
    standard = LambRule(
        step=step, beta1=0.9, beta2=0.999, beta3=1.0 - 0.9, correction1=1.0 - 0.9**step,
        correction2=1.0 - 0.999**step, eps=1e-6, weight_decay=0.01, step_size=0.02, lowest=0.0,
        highest=math.inf, is_exempt=False,
    )  # fmt: skip
    return replace(standard, **changes)


def take_steps(kernel: Kernel, *, is_split: bool, **changes: Any) -> dict[str, torch.Tensor]:
    """A few steps on fixed numbers; what they leave behind, by name.

    Args:
        kernel: computes the steps.
        is_split: parameters lie end to end in one tensor with gaps between them, and the last of
            them is held in part; else each is a tensor of its own.
        changes: of the rule's numbers; `divisor` is the clipping's.
    """
    device = changes.pop("device", "cpu")
    divisor = changes.pop("divisor", None)
    generator = torch.Generator().manual_seed(11)
    weights = [torch.randn(size, generator=generator) * 0.1 for size in SIZES]
    shards = _split(weights) if is_split else _apart(weights)
    shards = [tuple(tensor.to(device) for tensor in tensors) for tensors in shards]
    fragments = _fragments(is_split)
    numels = (*SIZES[:-1], SIZES[-1] + 1000) if is_split else SIZES
    for step in range(1, NUM_STEPS + 1):
        rule = rule_at(step, **changes)
        gradients = [torch.randn(len(w), generator=generator).to(device) * 0.01 for w, *_ in shards]
        inputs = StepInputs(
            tuple(
                FlatTensors(w, g.clone(), m, v, held, may_overwrite_gradient=is_split)
                for (w, m, v), g, held in zip(shards, gradients, fragments, strict=True)
            ),
            rule,
            numels,
            None if divisor is None else torch.tensor(divisor, dtype=torch.float64, device=device),
        )
        sums = torch.zeros(4, len(SIZES), dtype=torch.float64, device=device)
        apply_update = kernel.begin(inputs, sums)
        apply_update(rule.step_size * rule.factors(sums))
    found = {"sums": sums}
    for tensors, held in zip(shards, fragments, strict=True):
        for fragment in held:
            for what, flat in zip(("weight", "exp_avg", "exp_avg_sq"), tensors, strict=True):
                found[f"{what} {fragment.parameter}"] = fragment.of(flat)
    if is_split:
        found["gaps"] = shards[0][0][_gaps().to(device)]
    return {name: tensor.cpu() for name, tensor in found.items()}


def compare(kernel: Kernel, plain: Kernel, *, is_split: bool, **changes: Any) -> float:
    """Largest difference of a kernel's results from the plain one's, relative to their norm."""
    found = take_steps(kernel, is_split=is_split, **changes)
    expected = take_steps(plain, is_split=is_split, **changes)
    return max(
        float((found[name] - value).norm() / value.norm().clamp(min=1e-30))
        for name, value in expected.items()
        if value.numel() and name != "gaps"
    )


def padding_is_untouched(kernel: Kernel) -> bool:
    """Whether elements between the parameters of a flat tensor still hold what they held."""
    gaps = take_steps(kernel, is_split=True)["gaps"]
    return gaps.numel() > 0 and bool((gaps == PADDING).all())


def _fragments(is_split: bool) -> list[tuple[Fragment, ...]]:
    if not is_split:
        return [(Fragment(number, 0, 0, size),) for number, size in enumerate(SIZES)]
    held, start = [], 3
    for number, size in enumerate(SIZES):
        held.append(Fragment(number, start, 0, size))
        start += size + 3
    return [tuple(held)]


def _gaps() -> torch.Tensor:
    is_gap = torch.ones(3 + sum(size + 3 for size in SIZES), dtype=torch.bool)
    for fragment in _fragments(is_split=True)[0]:
        fragment.of(is_gap).fill_(False)
    return is_gap


def _apart(weights: list[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    return [(w, torch.zeros_like(w), torch.zeros_like(w)) for w in weights]


def _split(weights: list[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    flat = torch.full((len(_gaps()),), PADDING)
    for fragment, weight in zip(_fragments(is_split=True)[0], weights, strict=True):
        fragment.of(flat).copy_(weight)
    return [(flat, torch.zeros_like(flat), torch.zeros_like(flat))]


class StandInForAmpC(ModuleType):
    """apex's extension as its sources declare it, in tensor operations; records its calls.

    Source: apex, csrc/amp_C_frontend.cpp, multi_tensor_lamb_stage_1.cu and _stage_2.cu,
    multi_tensor_l2norm_kernel.cu.
    """

    def __init__(self) -> None:
        super().__init__("amp_C")
        self.steps: list[int] = []

    def multi_tensor_lamb_stage1_cuda(
        self,
        chunk_size: int,
        noop_flag: torch.Tensor,
        tensor_lists: list[list[torch.Tensor]],
        per_tensor_decay: torch.Tensor,
        step: int,
        beta1: float,
        beta2: float,
        epsilon: float,
        global_grad_norm: torch.Tensor,
        max_global_grad_norm: float,
    ) -> None:
        self._check(chunk_size, noop_flag, tensor_lists, depth=5)
        assert isinstance(step, int)
        assert per_tensor_decay.dtype == global_grad_norm.dtype == torch.float32
        assert per_tensor_decay.shape == (len(tensor_lists[0]),)
        assert global_grad_norm.device.type == "cpu"  # dereferenced on the host
        self.steps.append(step)
        norm = float(global_grad_norm)
        divisor = norm / max_global_grad_norm if norm > max_global_grad_norm else 1.0
        correction1, correction2 = 1.0 - beta1 ** (step + 1), 1.0 - beta2 ** (step + 1)
        for decay, g, w, m, v, u in zip(per_tensor_decay, *tensor_lists, strict=True):
            scaled = g / divisor
            m.copy_(m * beta1 + (1.0 - beta1) * scaled)
            v.copy_(v * beta2 + (1.0 - beta2) * scaled * scaled)
            u.copy_((m / correction1) / ((v / correction2).sqrt() + epsilon) + decay * w)

    def multi_tensor_l2norm(
        self,
        chunk_size: int,
        noop_flag: torch.Tensor,
        tensor_lists: list[list[torch.Tensor]],
        per_tensor_python: bool | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._check(chunk_size, noop_flag, tensor_lists, depth=1)
        norms = torch.stack([tensor.double().norm().float() for tensor in tensor_lists[0]])
        return norms.norm().reshape(1), norms if per_tensor_python else norms[:0]

    def multi_tensor_lamb_stage2_cuda(
        self,
        chunk_size: int,
        noop_flag: torch.Tensor,
        tensor_lists: list[list[torch.Tensor]],
        per_tensor_param_norm: torch.Tensor,
        per_tensor_update_norm: torch.Tensor,
        lr: float,
        weight_decay: float,
        use_nvlamb_python: bool | None = None,
    ) -> None:
        self._check(chunk_size, noop_flag, tensor_lists, depth=2)
        assert per_tensor_param_norm.dtype == per_tensor_update_norm.dtype == torch.float32
        for w_norm, u_norm, w, u in zip(
            per_tensor_param_norm, per_tensor_update_norm, *tensor_lists, strict=True
        ):
            ratio = lr
            if (use_nvlamb_python or weight_decay != 0.0) and w_norm != 0.0 and u_norm != 0.0:
                ratio = lr * float(w_norm / u_norm)
            w.copy_(w - ratio * u)

    def _check(
        self,
        chunk_size: int,
        noop_flag: torch.Tensor,
        tensor_lists: list[list[torch.Tensor]],
        depth: int,
    ) -> None:
        assert chunk_size > 0
        assert noop_flag.dtype == torch.int32
        assert noop_flag.numel() == 1
        assert len(tensor_lists) == depth
        shapes = [tensor.shape for tensor in tensor_lists[0]]
        for tensors in tensor_lists:
            assert [tensor.shape for tensor in tensors] == shapes
            assert all(t.is_contiguous() and t.numel() > 0 for t in tensors)
            assert all(t.dtype == torch.float32 for t in tensors)
