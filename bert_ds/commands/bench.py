"""`bert-ds bench`."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

import torch

from bert_ds.bench import checkpoint, data, exactness, exactness_plot, optimizer, step
from bert_ds.config.loading import load_run_config
from bert_ds.config.recipe import ExecutionConfig, RunConfig
from bert_ds.distributed.world import World
from bert_ds.errors import ConfigError
from bert_ds.train.setup import select_device


def run(arguments: argparse.Namespace, world: World) -> None:
    """Measure, print a table, and write the numbers where asked to.

    Raises:
        ConfigError: it was started with several ranks, or a value is out of range.
    """
    if world.world_size > 1:
        raise ConfigError(
            f"bench {arguments.what} measures one process, and {world.world_size} were started; "
            "start it without a launcher"
        )
    for path in (arguments.json, getattr(arguments, "plot", None)):
        if path is not None and path.is_dir():
            raise ConfigError(f"{path} is a folder; name a file in it")
        if path is not None and not os.access(path.absolute().parent, os.W_OK):
            raise ConfigError(f"{path} cannot be written: no folder {path.parent} to write to")
    if arguments.what == "data":
        _check_at_least_1("--repeats", arguments.repeats)
        rates = data.bench_data(arguments.data, arguments.repeats)
        print(data.as_text(rates))
        _write_json(arguments, rates.as_dict())
        return
    config = load_run_config(arguments.recipe, arguments.set)
    if arguments.what == "checkpoint":
        _check_at_least_1("--repeats", arguments.repeats)
        place = arguments.folder
        if not place.is_dir() or not os.access(place, os.W_OK):
            raise ConfigError(f"--folder {place}: no folder that can be written to")
        device = select_device(world)
        timed = checkpoint.bench_checkpoint(config, place, arguments.repeats, world, device)
        print(checkpoint.as_text(timed))
        _write_json(arguments, timed.as_dict())
        return
    if arguments.what == "step":
        _run_step(arguments, config, world)
        return
    if arguments.what == "optimizer":
        _check_at_least_1("--repeats", arguments.repeats)
        device = _device(arguments, world)
        measured = optimizer.bench_optimizer(config.model, arguments.repeats, device)
        print(optimizer.as_text(measured))
        _write_json(arguments, measured.as_dict())
        return
    for ranks in arguments.ranks:
        _check_at_least_1("--ranks", ranks)
    _check_at_least_1("--updates", arguments.updates)
    compared = exactness.bench_exactness(config, arguments.data, arguments.ranks, arguments.updates)
    print(exactness.as_text(compared))
    _write_json(arguments, compared.as_dict())
    if arguments.plot is not None:
        exactness_plot.draw(compared, arguments.plot)


def _run_step(arguments: argparse.Namespace, config: RunConfig, world: World) -> None:
    for flag in ("repeats", "accumulation", "micro_batch_size"):
        value = getattr(arguments, flag)
        if value is not None:
            _check_at_least_1(f"--{flag.replace('_', '-')}", value)
    options = step.StepOptions(
        phase_index=arguments.phase,
        micro_batch_size=arguments.micro_batch_size,
        accumulation=arguments.accumulation,
        repeats=arguments.repeats,
        full_rows=arguments.full_rows,
        compare=arguments.compare,
        other=_other(arguments, config),
    )
    device = _device(arguments, world)
    measured = step.bench_step(config, arguments.data, options, world, device)
    print(step.as_text(measured))
    _write_json(arguments, measured.as_dict())


def _other(arguments: argparse.Namespace, config: RunConfig) -> ExecutionConfig | None:
    """Our settings with the change that `--compare` names; None where it names none."""
    if arguments.compare in (None, "hf"):
        return None
    if not arguments.compare.startswith("execution."):
        raise ConfigError(
            f"--compare must be hf or a setting of execution, such as "
            f"execution.batch_layout=packed; it is '{arguments.compare}'"
        )
    other = load_run_config(arguments.recipe, [*arguments.set, arguments.compare])
    if other.execution == config.execution:
        raise ConfigError(f"--compare {arguments.compare}: the recipe has that setting already")
    if other.execution.deterministic != config.execution.deterministic:
        raise ConfigError(
            f"--compare {arguments.compare}: it holds for the whole process, which both share; "
            "measure it with --set, once without and once with it"
        )
    return other.execution


def _device(arguments: argparse.Namespace, world: World) -> torch.device:
    device = select_device(world)
    if arguments.threads is not None:
        _check_at_least_1("--threads", arguments.threads)
        torch.set_num_threads(arguments.threads)
    return device


def _check_at_least_1(flag: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{flag} must be at least 1, it is {value}")


def _write_json(arguments: argparse.Namespace, numbers: dict[str, Any]) -> None:
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
