"""The one reader of DeepSpeed's private attributes: which element lies where under ZeRO 1, 2, 3.

What makes this hard: none of what is read here is documented, and a layout that is misread trains,
with wrong trust ratios, without any error. The attributes are the same in DeepSpeed 0.19.0 to
0.19.8, the versions that `pyproject.toml` allows. Three checks must stay: another version is
refused; the float32 elements of every fragment are compared with the model's own weights, so the
layout must be read before the first step; and the ranks together must hold every element once. All
ranks learn of a failure before any of them raises it, since they read together.

ZeRO 1 and 2: the parameters of a group lie end to end (with padding, and in another order under
`round_robin_gradients` and `parameter_alignment`) in `bit16_groups_flat[i]`, of which each model
parameter's `.data` is a view: its storage offset is its place. This rank's equal part of that
buffer, in float32, is `single_partition_of_fp32_groups[i]`.

ZeRO 3: `fp16_groups[i]` are the parameters of a sub-group, whose shards of `partition_numel()`
elements lie end to end in `fp32_partitioned_groups_flat[i]`. Rank r's shard of a parameter is
elements [r n, (r + 1) n) of it, cut at `ds_numel`. What lies behind that in the flat tensor is
padding, and uninitialised memory: values of 1e31 were seen there. One of them in a norm would make
a trust ratio infinite or 0, without an error. So padding belongs to no fragment, and everything
that sums goes over fragments.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any

import torch
import torch.distributed as torch_dist
from packaging.version import Version
from torch import nn

from bert_ds.errors import ConfigError, TrainingError
from bert_ds.optim.layout import (
    FlatShard,
    Fragment,
    ShardLayout,
    all_reduce_sum,
    fragments_within,
)

TESTED_VERSIONS = ("0.19.0", "0.19.8")
"""Oldest and newest DeepSpeed that this module is tested with, as in pyproject.toml."""

_STAGE_1_2 = "DeepSpeedZeroOptimizer"
_STAGE_3 = "DeepSpeedZeroOptimizer_Stage3"


def read_layout(zero_optimizer: Any, model: nn.Module) -> ShardLayout:
    """Read the layout of an initialised ZeRO optimizer and check it. All ranks call it together.

    Args:
        zero_optimizer: The `engine.optimizer` of a DeepSpeed engine, before its first step.
        model: The model that the engine was given; it gives the parameters their names.

    Raises:
        ConfigError: The version of DeepSpeed, or the class in which the engine wraps the optimizer,
            is none of those that are tested.
        TrainingError: The attributes are missing, or hold something else than in tested versions.
    """
    check_version(metadata.version("deepspeed"))
    kind = type(zero_optimizer).__name__
    readers = {_STAGE_1_2: _read_stage_1_2, _STAGE_3: _read_stage_3}
    if kind not in readers:
        raise ConfigError(
            f"DeepSpeed wraps the optimizer in {kind}, whose layout is not known; exact LAMB needs "
            f"{' or '.join(readers)}. Set zero_optimization.stage to 1, 2 or 3 (under bf16 at "
            "stage 1 leave data_types.grad_accum_dtype out or set it to bf16)"
        )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    failure: Exception | None = None
    try:
        layout = readers[kind](zero_optimizer, names)
    except (AttributeError, IndexError, KeyError, TypeError, TrainingError) as err:
        failure = err
    num_failed = torch.tensor([int(failure is not None)])
    all_reduce_sum(num_failed, None)
    if isinstance(failure, TrainingError):
        raise failure
    if failure is not None:
        raise TrainingError(
            f"{kind} of this DeepSpeed does not have the attributes that are known from "
            f"{' to '.join(TESTED_VERSIONS)} ({type(failure).__name__}: {failure}); install a "
            "version of that range"
        ) from failure
    if num_failed.item():
        raise TrainingError("another rank cannot read the layout of its shards; see its log")
    layout = _with_empty_parameters(layout, model, kind)
    layout.check()
    return layout


def check_version(version: str) -> None:
    """Refuse a version of DeepSpeed that this module is not tested with.

    Raises:
        ConfigError: The version is outside TESTED_VERSIONS.
    """
    oldest, newest = TESTED_VERSIONS
    if not Version(oldest) <= Version(Version(version).base_version) <= Version(newest):
        raise ConfigError(
            f"exact LAMB under ZeRO is tested with DeepSpeed {oldest} to {newest}, and {version} "
            "is installed: install one of them, use ZeRO stage 0 in fp32, or run "
            "tests/distributed/test_exact_lamb.py with yours and, where it passes, widen "
            "TESTED_VERSIONS in bert_ds/optim/zero_layout.py"
        )


def _with_empty_parameters(layout: ShardLayout, model: nn.Module, kind: str) -> ShardLayout:
    """Add the trainable parameters without elements, which lie in no flat buffer."""
    empty = {
        name: parameter.shape
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and getattr(parameter, "ds_numel", parameter.numel()) == 0
    }
    if empty and kind == _STAGE_3:
        raise ConfigError(
            f"DeepSpeed's ZeRO stage 3 cannot fetch parameters without elements "
            f"({', '.join(empty)}); remove them, or use stage 1 or 2"
        )
    assert not empty.keys() & set(layout.names)
    names, shapes = (*layout.names, *empty), (*layout.shapes, *empty.values())
    return ShardLayout(names, shapes, layout.shards, layout.group)


def _read_stage_1_2(zero: Any, names: dict[int, str]) -> ShardLayout:
    found_names: list[str] = []
    shapes: list[torch.Size] = []
    shards: list[FlatShard] = []
    group = zero.real_dp_process_group[0]
    for index, parameters in enumerate(zero.bit16_groups):
        if zero.real_dp_process_group[index] is not group:
            raise TrainingError("parameter groups with process groups of their own (experts)")
        flat = zero.bit16_groups_flat[index]
        shard = zero.single_partition_of_fp32_groups[index]
        spans = []
        held = [parameter for parameter in parameters if parameter.numel()]
        for parameter in held:
            if parameter.data.untyped_storage().data_ptr() != flat.untyped_storage().data_ptr():
                raise TrainingError(f"{names[id(parameter)]} does not lie in its flat buffer")
            start = parameter.data.storage_offset() - flat.storage_offset()
            spans.append((len(found_names), start, parameter.numel()))
            found_names.append(names[id(parameter)])
            shapes.append(parameter.shape)
        begin = torch_dist.get_rank(group) * shard.numel()
        fragments = fragments_within(spans, begin, begin + shard.numel())
        by_number = {number: p for (number, _, _), p in zip(spans, held, strict=True)}
        for fragment in fragments:
            whole = by_number[fragment.parameter].data.reshape(-1)
            model_values = whole.narrow(0, fragment.parameter_start, fragment.numel)
            _check_values(found_names[fragment.parameter], fragment.of(shard), model_values)
        shards.append(FlatShard(shard, fragments))
    return ShardLayout(tuple(found_names), tuple(shapes), tuple(shards), group)


def _read_stage_3(zero: Any, names: dict[int, str]) -> ShardLayout:
    found_names: list[str] = []
    shapes: list[torch.Size] = []
    shards: list[FlatShard] = []
    group = None
    for index, parameters in enumerate(zero.fp16_groups):
        flat = zero.fp32_partitioned_groups_flat[index]
        fragments, start = [], 0
        for parameter in parameters:
            group = parameter.ds_process_group
            length = parameter.partition_numel()
            begin = torch_dist.get_rank(group) * length
            numel = max(0, min(length, parameter.ds_numel - begin))
            if numel:
                fragment = Fragment(len(found_names), start, begin, numel)
                local = parameter.ds_tensor.data.reshape(-1).narrow(0, 0, numel)
                _check_values(names[id(parameter)], fragment.of(flat), local)
                fragments.append(fragment)
            found_names.append(names[id(parameter)])
            shapes.append(parameter.ds_shape)
            start += length
        shards.append(FlatShard(flat, tuple(fragments)))
    return ShardLayout(tuple(found_names), tuple(shapes), tuple(shards), group)


def _check_values(name: str, master: torch.Tensor, model_values: torch.Tensor) -> None:
    """Check that the float32 fragment holds the model's own values; else the layout is misread."""
    if master.dtype != torch.float32:
        raise TrainingError(f"the master weights of {name} are {master.dtype}, not float32")
    seen = model_values.detach().to(device=master.device, dtype=torch.float32)
    if not torch.equal(master.detach(), seen):
        raise TrainingError(
            f"the float32 weights of {name} are not where they are in tested versions: this "
            "DeepSpeed lays them out in another way; install a version from "
            f"{' to '.join(TESTED_VERSIONS)}"
        )
