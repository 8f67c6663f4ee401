"""`bert-ds bench`: measure one part of training, in a way that can be repeated."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_ds.commands.arguments import (
    add_data,
    add_json_file,
    add_recipe,
    add_repeats,
    add_threads,
    check_at_least_1,
)
from bert_ds.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from bert_ds.commands.arguments import Commands
    from bert_ds.config.recipe import ExecutionConfig, RunConfig
    from bert_ds.distributed.world import World


def add_parser(commands: Commands) -> None:
    """Register the command and its parts."""
    parser = commands.add_parser(
        "bench",
        help="measure a part, in a way that can be repeated",
        epilog="Example: bert-ds bench step --recipe bert-base --data DATA --compare hf",
    )
    parts = parser.add_subparsers(dest="what", required=True, metavar="PART")
    for add_part in (_add_optimizer, _add_data, _add_step, _add_checkpoint, _add_exactness):
        add_part(parts)


def _add_optimizer(parts: Commands) -> None:
    parser = parts.add_parser(
        "optimizer", help="a LAMB step's time against DeepSpeed's Adam, naive ratios and bandwidth"
    )
    add_recipe(parser)
    add_threads(parser)
    add_repeats(parser, 7)
    add_json_file(parser)
    parser.set_defaults(execute=_bench_optimizer)


def _bench_optimizer(arguments: argparse.Namespace, world: World) -> None:
    from bert_ds.bench import optimizer
    from bert_ds.config.loading import load_run_config

    _check_process_and_files(arguments, world)
    config = load_run_config(arguments.recipe, arguments.set)
    check_at_least_1("--repeats", arguments.repeats)
    device = _device(arguments, world)
    measured = optimizer.bench_optimizer(config.model, arguments.repeats, device)
    print(optimizer.as_text(measured))
    _write_json(arguments, measured.as_dict())


def _add_data(parts: Commands) -> None:
    parser = parts.add_parser(
        "data", help="sequences a second from shards to packed and padded micro batches"
    )
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="a dataset folder, as DATA/seq128"
    )
    add_repeats(parser, 7)
    add_json_file(parser)
    parser.set_defaults(execute=_bench_data)


def _bench_data(arguments: argparse.Namespace, world: World) -> None:
    from bert_ds.bench import data

    _check_process_and_files(arguments, world)
    check_at_least_1("--repeats", arguments.repeats)
    rates = data.bench_data(arguments.data, arguments.repeats)
    print(data.as_text(rates))
    _write_json(arguments, rates.as_dict())


def _add_step(parts: Commands) -> None:
    parser = parts.add_parser(
        "step", help="a training step's sequences a second, alone or next to another one"
    )
    add_recipe(parser)
    add_data(parser)
    parser.add_argument("--phase", type=int, default=0, metavar="N", help="default 0, the first")
    parser.add_argument(
        "--compare", metavar="{hf,execution.KEY=VALUE}",
        help="what is measured next to it: hf, transformers' BertForPreTraining; or our own under "
        "another setting, such as execution.batch_layout=packed",
    )  # fmt: skip
    parser.add_argument(
        "--full-rows", action="store_true", help="only sequences of the phase's full length"
    )
    parser.add_argument(
        "--micro-batch-size", type=int, metavar="N",
        help="sequences a forward (default: the recipe's)",
    )  # fmt: skip
    parser.add_argument(
        "--accumulation", type=int, default=2, metavar="N",
        help="micro batches an update (default 2)",
    )  # fmt: skip
    add_threads(parser)
    add_repeats(parser, 5)
    add_json_file(parser)
    parser.set_defaults(execute=_bench_step)


def _bench_step(arguments: argparse.Namespace, world: World) -> None:
    from bert_ds.bench import step
    from bert_ds.config.loading import load_run_config

    _check_process_and_files(arguments, world)
    config = load_run_config(arguments.recipe, arguments.set)
    for flag in ("repeats", "accumulation", "micro_batch_size"):
        value = getattr(arguments, flag)
        if value is not None:
            check_at_least_1(f"--{flag.replace('_', '-')}", value)
    options = step.StepOptions(
        phase_index=arguments.phase,
        micro_batch_size=arguments.micro_batch_size,
        accumulation=arguments.accumulation,
        repeats=arguments.repeats,
        full_rows=arguments.full_rows,
        compare=arguments.compare,
        other=_compared_settings(arguments, config),
    )
    device = _device(arguments, world)
    measured = step.bench_step(config, arguments.data, options, world, device)
    print(step.as_text(measured))
    _write_json(arguments, measured.as_dict())


def _compared_settings(arguments: argparse.Namespace, config: RunConfig) -> ExecutionConfig | None:
    """Return our settings with the change that `--compare` names; None where it names none."""
    from bert_ds.config.loading import load_run_config

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


def _add_checkpoint(parts: Commands) -> None:
    parser = parts.add_parser(
        "checkpoint", help="seconds that saving a checkpoint takes, and loading it"
    )
    add_recipe(parser)
    parser.add_argument(
        "--folder", type=Path, required=True, metavar="DIR", help="on the file system to measure"
    )
    add_repeats(parser, 3)
    add_json_file(parser)
    parser.set_defaults(execute=_bench_checkpoint)


def _bench_checkpoint(arguments: argparse.Namespace, world: World) -> None:
    from bert_ds.bench import checkpoint
    from bert_ds.config.loading import load_run_config
    from bert_ds.train.setup import select_device

    _check_process_and_files(arguments, world)
    config = load_run_config(arguments.recipe, arguments.set)
    check_at_least_1("--repeats", arguments.repeats)
    folder = arguments.folder
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"--folder {folder} is no folder that can be written to; name another")
    timed = checkpoint.bench_checkpoint(
        config, folder, arguments.repeats, world, select_device(world)
    )
    print(checkpoint.as_text(timed))
    _write_json(arguments, timed.as_dict())


def _add_exactness(parts: Commands) -> None:
    parser = parts.add_parser(
        "exactness", help="what one trust ratio per ZeRO shard does to a model, on real text"
    )
    add_recipe(parser)
    add_data(parser)
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[1, 8, 64], metavar="N",
        help="numbers of ranks to cut shards for (default 1 8 64)",
    )  # fmt: skip
    parser.add_argument("--updates", type=int, default=100, metavar="N", help="default 100")
    add_json_file(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them as SVG")
    parser.set_defaults(execute=_bench_exactness)


def _bench_exactness(arguments: argparse.Namespace, world: World) -> None:
    from bert_ds.bench import exactness, exactness_plot
    from bert_ds.config.loading import load_run_config

    _check_process_and_files(arguments, world)
    config = load_run_config(arguments.recipe, arguments.set)
    for ranks in arguments.ranks:
        check_at_least_1("--ranks", ranks)
    check_at_least_1("--updates", arguments.updates)
    compared = exactness.bench_exactness(config, arguments.data, arguments.ranks, arguments.updates)
    print(exactness.as_text(compared))
    _write_json(arguments, compared.as_dict())
    if arguments.plot is not None:
        exactness_plot.draw(compared, arguments.plot)


def _check_process_and_files(arguments: argparse.Namespace, world: World) -> None:
    """Raise ConfigError with several ranks, or where a result cannot be written."""
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


def _device(arguments: argparse.Namespace, world: World) -> torch.device:
    import torch

    from bert_ds.train.setup import select_device

    device = select_device(world)
    if arguments.threads is not None:
        check_at_least_1("--threads", arguments.threads)
        torch.set_num_threads(arguments.threads)
    return device


def _write_json(arguments: argparse.Namespace, numbers: dict[str, Any]) -> None:
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
