"""`bert-ds plan`: what a recipe means at a world size, without torch."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from bert_ds.commands.arguments import add_json_output, add_recipe, check_at_least_1

if TYPE_CHECKING:
    from bert_ds.commands.arguments import Commands
    from bert_ds.distributed.world import World


def add_parser(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "plan",
        help="batches, memory and time of a recipe at a world size; needs no GPU",
        description="Print what a recipe means at a world size: batch arithmetic and memory by "
        "part; on a kind of GPU also the largest micro batch that fits and the time to expect.",
        epilog="Example: bert-ds plan --recipe bert-large --world-size 64 --gpu h100",
    )
    add_recipe(parser)
    parser.add_argument("--world-size", type=int, required=True, metavar="N", help="ranks")
    parser.add_argument(
        "--gpu", metavar="NAME",
        help="kind of GPU: v100-16, v100-32, a100-40, a100-80, h100, h200, l40s, ... (an unknown "
        "name prints all)",
    )  # fmt: skip
    parser.add_argument("--gpus-per-host", type=int, metavar="N", help="default 8")
    parser.add_argument(
        "--network-gbit-per-s", type=float, metavar="X", help="of a host, each way (default 200)"
    )
    parser.add_argument(
        "--mfu", type=float, metavar="X",
        help="share of the GPU's peak that computing reaches (default 0.45, as published)",
    )  # fmt: skip
    parser.add_argument(
        "--measured", type=Path, action="extend", nargs="+", default=[], metavar="FILE",
        help="result of bench step --json on such a GPU, instead of an assumed share; one per "
        "phase",
    )  # fmt: skip
    add_json_output(parser)
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace, world: World) -> None:
    """Print the plan of a recipe at a world size and, with a kind of GPU, on such GPUs."""
    from bert_ds.config.loading import load_run_config
    from bert_ds.plan import PlanOptions, plan_as_text, plan_run

    check_at_least_1("--world-size", arguments.world_size)
    config = load_run_config(arguments.recipe, arguments.set)
    options = PlanOptions(
        gpu=arguments.gpu,
        gpus_per_host=arguments.gpus_per_host,
        network_gbit_per_s=arguments.network_gbit_per_s,
        mfu=arguments.mfu,
        measured=tuple(arguments.measured),
    )
    plan = plan_run(config, arguments.world_size, options)
    print(json.dumps(plan.as_dict(), indent=2) if arguments.json else plan_as_text(plan))
