"""Kernels that compute a step, and the choice among them.

`auto` takes the fastest that works where the tensors lie: on GPUs Triton's, else apex's, else the
plain one; on CPUs the C one where a compiler is found, else the plain one; the plain one anywhere
else, for any dtype but float32 and for a rule that no other computes. A kernel asked for by name is
used or refused, never replaced.

The fused kernels square elements in float32: a tensor whose elements are all below 1e-19 has norm 0
for them, and one with elements above 1e19 has an infinite norm.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection
from typing import Any, NamedTuple

import torch

from bert_ds.config.optimizer import KernelName
from bert_ds.errors import ConfigError
from bert_ds.optim.kernels.base import FlatTensors, Kernel, StepInputs
from bert_ds.optim.kernels.build import BuildError
from bert_ds.optim.kernels.cpu import CpuKernel
from bert_ds.optim.kernels.plain import PlainKernel
from bert_ds.optim.lamb_rule import LambRule
from bert_ds.optim.layout import Fragment
from bert_ds.optim.rule import NUM_SUMS


class Choice(NamedTuple):
    """A kernel and the reason why it was chosen."""

    kernel: Kernel
    """The kernel; one instance serves one optimizer."""
    reason: str
    """The reason in a few words, for the log."""


class _Unavailable(Exception):
    """A kernel cannot be used here; the message has the reason, in a few words."""


def choose_kernel(
    name: KernelName,
    device: torch.device,
    dtype: torch.dtype,
    fused_kernels: Collection[str] = ("triton", "cpu", "apex"),
) -> Choice:
    """Choose the kernel for tensors of a device and dtype.

    Args:
        name: The `kernel` setting.
        device: Device that the tensors lie on.
        dtype: Type of the master weights.
        fused_kernels: The hand-written kernels that compute the rule, `Rule.fused_kernels`.

    Raises:
        ConfigError: A kernel asked for by name does not work here.
    """
    tries = {
        "triton": lambda: _triton(device, dtype),
        "apex": lambda: _apex(device, dtype),
        "cpu": lambda: _cpu(device, dtype),
        "plain": lambda: Choice(PlainKernel(), "works everywhere"),
    }

    def attempt(candidate: str) -> Choice:
        if candidate not in (*fused_kernels, "plain"):
            raise _Unavailable("it does not compute this optimizer with these settings")
        return tries[candidate]()

    if name != "auto":
        try:
            return Choice(attempt(name).kernel, "asked for by name")
        except _Unavailable as err:
            raise ConfigError(
                f"the optimizer's kernel '{name}' cannot be used here: {err}. Set kernel to auto, "
                "or to plain, which works everywhere"
            ) from err
    fastest = {"cuda": ("triton", "apex"), "cpu": ("cpu",)}.get(device.type, ())
    complaints = []
    for candidate in fastest:
        try:
            return attempt(candidate)
        except _Unavailable as err:
            complaints.append(f"{candidate}: {err}")
    return Choice(PlainKernel(), "; ".join(complaints) or f"none is faster on {device.type}")


def _triton(device: torch.device, dtype: torch.dtype) -> Choice:
    is_interpreted = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes")
    _check_place(device, dtype, ("cuda", "cpu") if is_interpreted else ("cuda",))
    try:
        from bert_ds.optim.kernels.triton_lamb import TritonKernel
    except ImportError as err:
        raise _Unavailable(f"Triton cannot be imported ({err})") from None
    if device.type == "cuda":
        try:
            _try_once(TritonKernel(), device)
        except Exception as err:  # it compiles now: a missing compiler or an old GPU, in any class
            raise _Unavailable(f"Triton cannot compile or start a kernel here ({err})") from None
    return Choice(TritonKernel(), "Triton works here")


def _try_once(kernel: Kernel, device: torch.device) -> None:
    """Take one step on four elements."""
    weight, gradient, exp_avg, exp_avg_sq = torch.ones(4, 4, device=device).unbind()
    rule = LambRule(1, 0.9, 0.999, 0.1, 0.1, 0.001, 1e-6, 0.0, 0.0, 0.0, 1.0, False)
    flat = FlatTensors(weight, gradient, exp_avg, exp_avg_sq, (Fragment(0, 0, 0, 4),), False)
    sums = torch.zeros(NUM_SUMS, 1, dtype=torch.float64, device=device)
    kernel.begin(StepInputs((flat,), rule, (4,), None), sums)(sums[0])


def _apex(device: torch.device, dtype: torch.dtype) -> Choice:
    _check_place(device, dtype, ("cuda",))
    amp_c = import_amp_c()
    from bert_ds.optim.kernels.apex import ApexKernel

    return Choice(ApexKernel(amp_c), "Triton cannot be used, NVIDIA apex can be imported")


def import_amp_c() -> Any:
    """Import NVIDIA apex's extension module.

    The package called apex on PyPI is another project and has none.
    """
    try:
        amp_c = importlib.import_module("amp_C")
    except ImportError as err:
        raise _Unavailable(f"NVIDIA apex's amp_C cannot be imported ({err})") from None
    needed = (
        "multi_tensor_lamb_stage1_cuda",
        "multi_tensor_lamb_stage2_cuda",
        "multi_tensor_l2norm",
    )
    missing = [function for function in needed if not hasattr(amp_c, function)]
    if missing:
        raise _Unavailable(f"this amp_C has no {', '.join(missing)}")
    return amp_c


def _cpu(device: torch.device, dtype: torch.dtype) -> Choice:
    _check_place(device, dtype, ("cpu",))
    try:
        kernel = CpuKernel()
    except BuildError as err:
        raise _Unavailable(str(err)) from None
    return Choice(kernel, f"built with {kernel.build}")


def _check_place(device: torch.device, dtype: torch.dtype, device_types: tuple[str, ...]) -> None:
    if device.type not in device_types:
        raise _Unavailable(f"it works on {device_types[0]} tensors, and these lie on {device.type}")
    if dtype != torch.float32:
        raise _Unavailable(f"it works in float32, and these are {dtype}")
