"""`bert-ds bench optimizer`: compares a LAMB step with DeepSpeed's Adam and with naive ratios.

All ways take turns (A B C, C B A, A B C, ...) on the same tensors in one process, so that a machine
whose speed drifts favours none; results are medians, and the median of the ratios within a round.

A step must read weight, gradient and both moments and write weight and moments: 28 bytes per
element. The bandwidth that a step reaches counts only those.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bert_ds.bench.shards import FlatShards, flat_shards
from bert_ds.config.model import ModelConfig
from bert_ds.config.optimizer import KernelName
from bert_ds.engine import import_deepspeed
from bert_ds.metrics.norms import norm_columns
from bert_ds.model.families import family_of
from bert_ds.optim import Lamb, param_groups
from bert_ds.optim.kernels.base import FlatTensors
from bert_ds.optim.kernels.plain import PlainKernel
from bert_ds.optim.lamb_rule import LambRule
from bert_ds.optim.layout import FlatShard, Fragment, ShardLayout
from bert_ds.optim.rule import Rule

BYTES_PER_ELEMENT = 28
ADAM = "DeepSpeedCPUAdam"
FUSED_ADAM = "torch AdamW, fused"
EXACT = "LAMB, exact"
NAIVE = "LAMB, one ratio a shard (wrong)"
SPLIT = "LAMB, exact, every tensor split over ranks (as ZeRO 3)"
EAGER = "LAMB, exact, plain tensor operations"
COMPILED = "LAMB, exact, plain operations through torch.compile"
REPORT = "trust ratios for the log, of ten updates"
UPDATES_A_REPORT = 10
_BUILD_FAILURES = (RuntimeError, OSError, ImportError, subprocess.SubprocessError)
"""Errors of DeepSpeed's builds and of torch.compile without a compiler or ninja."""


@dataclass(frozen=True)
class Measurement:
    """The times of one way to step."""

    name: str
    """Name of the way."""
    median_s: float | None
    """Median seconds of a step; None if the way is not available."""
    ratio: float | None
    """Its time divided by Adam's in the same round, median over the rounds; None without Adam."""
    gb_per_s: float | None
    """28 bytes per element divided by the median time, 10^9 bytes/s."""
    note: str
    """What was used, or why there is no figure."""


@dataclass(frozen=True)
class OptimizerBench:
    """All measurements, and what they were taken on."""

    num_elements: int
    """Elements of the model."""
    num_tensors: int
    """Parameters of the model."""
    device: str
    """Kind and name of the device."""
    num_threads: int
    """Threads of torch on the host."""
    memory_gb_per_s: float
    """Bytes read and written when a tensor is scaled in place, 10^9 bytes/s."""
    measurements: tuple[Measurement, ...]
    """One measurement per way."""
    exact_over_naive: float
    """The exact step's time divided by the naive one's, median over the rounds."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


@dataclass
class _Tensors:
    """The tensors that all ways share."""

    shards: FlatShards
    """Flat shards of one rank, with gradients."""
    moments: dict[int, dict[str, torch.Tensor]]
    """Their moments by name, by `id(shard)`."""
    groups: list[dict[str, Any]]
    """Parameter groups of the model, whose tensors have no values."""

    @property
    def flats(self) -> list[torch.nn.Parameter]:
        """The flat shards of all groups, in order."""
        return [flat for flats in self.shards.by_group for flat in flats]

    def state(self) -> dict[torch.Tensor, dict[str, Any]]:
        """Return a state for an optimizer, with the shared moments."""
        return {flat: {"step": 1, **self.moments[id(flat)]} for flat in self.flats}


def bench_optimizer(
    model_config: ModelConfig, repeats: int, device: torch.device
) -> OptimizerBench:
    """Time every way `repeats` times on tensors of the model's shapes.

    Args:
        model_config: shape of the model, which is not built itself.
        repeats: rounds that count, after one that does not.
        device: device of the tensors.
    """
    tensors = _make_tensors(model_config, device)
    ways: dict[str, Callable[[], None]] = {}
    notes: dict[str, str] = {}
    _add_adam(tensors, device, ways, notes)
    exact = _lamb(tensors, tensors.shards.layout)
    ways[EXACT] = exact.step
    ways[NAIVE] = _naive(tensors).step
    ways[SPLIT] = _lamb(tensors, _as_if_split(tensors.shards.layout)).step
    ways[EAGER] = _lamb(tensors, tensors.shards.layout, kernel="plain").step
    _add_compiled(tensors, ways)
    ways[REPORT] = _report_of(exact)
    times: dict[str, list[float]] = {name: [] for name in ways}
    memory: list[float] = []
    for number in range(repeats + 1):
        turn = list(ways.items())
        for name, way in turn if number % 2 else reversed(turn):
            try:
                seconds = _time(way, device)
            except _BUILD_FAILURES as err:
                if name != COMPILED:
                    raise
                notes[name] = f"not available: {_first_line(err)}"
                del ways[name], times[name]
                continue
            if number:
                times[name].append(seconds)
        seconds = _time(lambda: _scale(tensors.flats[0]), device)
        memory.append(8 * tensors.flats[0].numel() / seconds / 1e9)
    for choice in exact.kernel_choices:
        notes[EXACT] = f"kernel {choice.kernel.name}, {choice.reason}"
    return _result(tensors, device, times, notes, statistics.median(memory[1:]))


def _result(
    tensors: _Tensors,
    device: torch.device,
    times: dict[str, list[float]],
    notes: dict[str, str],
    memory_gb_per_s: float,
) -> OptimizerBench:
    num_elements = sum(shape.numel() for shape in tensors.shards.layout.shapes)
    baseline = times.get(ADAM) or times.get(FUSED_ADAM)
    measurements = []
    for name in (ADAM, FUSED_ADAM, EXACT, NAIVE, SPLIT, EAGER, COMPILED, REPORT):
        note = notes.get(name, "")
        if name not in times:
            if note:
                measurements.append(Measurement(name, None, None, None, note))
            continue
        median = statistics.median(times[name])
        gb_per_s = None if name == REPORT else BYTES_PER_ELEMENT * num_elements / median / 1e9
        ratio = _median_ratio(times[name], baseline) if baseline else None
        measurements.append(Measurement(name, median, ratio, gb_per_s, note))
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return OptimizerBench(
        num_elements=num_elements,
        num_tensors=len(tensors.shards.layout.names),
        device=f"{device.type} ({where})",
        num_threads=torch.get_num_threads(),
        memory_gb_per_s=memory_gb_per_s,
        measurements=tuple(measurements),
        exact_over_naive=_median_ratio(times[EXACT], times[NAIVE]),
    )


def as_text(bench: OptimizerBench) -> str:
    """Return the result as a table."""
    lines = [
        f"{bench.num_elements:,} elements in {bench.num_tensors} tensors, {bench.device}, "
        f"{bench.num_threads} threads, memory {bench.memory_gb_per_s:.0f} GB/s read and written",
        "",
        f"{'step':56}{'ms':>9}{'/ Adam':>8}{'GB/s':>7}",
    ]
    for each in bench.measurements:
        if each.median_s is None:
            lines.append(f"{each.name:56}{'-':>9}  {each.note}")
            continue
        ratio = f"{each.ratio:.2f}" if each.ratio is not None else "-"
        rate = f"{each.gb_per_s:.0f}" if each.gb_per_s is not None else "-"
        lines.append(f"{each.name:56}{1000 * each.median_s:9.2f}{ratio:>8}{rate:>7}")
        if each.note:
            lines.append(f"    {each.note}")
    lines += ["", f"exact / one ratio a shard: {bench.exact_over_naive:.3f}"]
    return "\n".join(lines)


def _make_tensors(model_config: ModelConfig, device: torch.device) -> _Tensors:
    with torch.device("meta"):
        model = family_of(model_config).build(model_config)
    groups = param_groups(model, 0.01)
    shards = flat_shards(groups, 1, device)
    generator = torch.Generator(device).manual_seed(0)
    moments = {}
    for flats in shards.by_group:
        for flat in flats:
            flat.detach().uniform_(-0.03, 0.03, generator=generator)
            assert flat.grad is not None
            flat.grad.uniform_(-1e-3, 1e-3, generator=generator)
            moments[id(flat)] = {
                "exp_avg": torch.zeros_like(flat, requires_grad=False),
                "exp_avg_sq": torch.full_like(flat, 1e-6, requires_grad=False),
            }
    return _Tensors(shards, moments, groups)


def _lamb(tensors: _Tensors, layout: ShardLayout, kernel: KernelName = "auto") -> Lamb:
    """Return a LAMB over the shared tensors, whose steps are too small to change them."""
    optimizer = Lamb([dict(group) for group in tensors.groups], lr=1e-12, kernel=kernel)
    optimizer.bind(layout)
    for group, flats in zip(optimizer.param_groups, tensors.shards.by_group, strict=True):
        group["params"] = list(flats)
    optimizer.state.update(tensors.state())
    return optimizer


def _naive(tensors: _Tensors) -> Lamb:
    """Return a LAMB with the same kernel that takes each flat tensor for one parameter."""
    flats = tensors.flats
    names = tuple(f"shard {number}" for number in range(len(flats)))
    groups = [
        {"params": [flat], "names": [name], "weight_decay": group["weight_decay"]}
        for name, flat, group in zip(names, flats, tensors.groups, strict=True)
    ]
    shards = tuple(
        FlatShard(flat, (Fragment(number, 0, 0, flat.numel()),))
        for number, flat in enumerate(flats)
    )
    optimizer = Lamb(groups, lr=1e-12)
    optimizer.bind(ShardLayout(names, tuple(flat.shape for flat in flats), shards, None))
    optimizer.state.update(tensors.state())
    return optimizer


def _as_if_split(layout: ShardLayout) -> ShardLayout:
    """Return a layout in which another rank holds the last element of each parameter."""
    shapes = tuple(torch.Size([shape.numel() + 1]) for shape in layout.shapes)
    return ShardLayout(layout.names, shapes, layout.shards, layout.group)


def _add_adam(
    tensors: _Tensors,
    device: torch.device,
    ways: dict[str, Callable[[], None]],
    notes: dict[str, str],
) -> None:
    if device.type != "cpu":
        fused = torch.optim.AdamW(tensors.flats, lr=1e-12, fused=True)
        ways[FUSED_ADAM] = fused.step
        return
    # Its build calls ninja, which may be next to a Python that is not on the path.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    try:
        adam = import_deepspeed().ops.adam.DeepSpeedCPUAdam(
            tensors.flats, lr=1e-12, adamw_mode=True
        )
    except _BUILD_FAILURES as err:  # the constructor builds it
        notes[ADAM] = f"not available: {_first_line(err)}"
        return
    adam.state.update(tensors.state())
    ways[ADAM] = adam.step


def _add_compiled(tensors: _Tensors, ways: dict[str, Callable[[], None]]) -> None:
    compiled = torch.compile(LambRule.advance)

    class CompiledKernel(PlainKernel):
        """The plain kernel with its element-wise part compiled."""

        def advance(
            self, rule: Rule, flat: FlatTensors, gradient: torch.Tensor
        ) -> tuple[torch.Tensor, ...]:
            assert isinstance(rule, LambRule)
            return compiled(rule, flat.weight, gradient, flat.exp_avg, flat.exp_avg_sq)

    optimizer = _lamb(tensors, tensors.shards.layout, kernel="plain")
    optimizer.use_kernel(CompiledKernel(), tensors.flats[0].device, torch.float32)
    ways[COMPILED] = optimizer.step


def _report_of(optimizer: Lamb) -> Callable[[], None]:
    """Return a function that does what the log does with the ratios of ten updates."""

    def report() -> None:
        norms = [optimizer.last_norms() for _ in range(UPDATES_A_REPORT)]
        norm_columns(norms, [1.0] * UPDATES_A_REPORT, by_layer=False)

    return report


def _first_line(err: Exception) -> str:
    return f"{type(err).__name__}: {str(err).partition(chr(10))[0]}"


def _scale(tensor: torch.Tensor) -> None:
    tensor.detach().mul_(1.0)


def _time(way: Callable[[], None], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    way()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def _median_ratio(times: list[float], baseline: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(times, baseline, strict=True))
