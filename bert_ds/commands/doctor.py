"""`bert-ds doctor`: check whether this host, or all hosts of a run, are ready for it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from bert_ds.commands.arguments import add_data, add_json_output, add_recipe
from bert_ds.errors import BertDsError

if TYPE_CHECKING:
    from bert_ds.commands.arguments import Commands
    from bert_ds.distributed.world import World


class NotReadyError(BertDsError):
    """The doctor has found errors."""


def add_parser(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "doctor",
        help="check whether this host, or all hosts of a run, are ready for it",
        description="Check versions, GPUs, precision, LAMB's kernels, network, clocks, folders, "
        "datasets and limits, compare the hosts, and have them exchange data. Alone it checks this "
        "host, under a launcher those of all ranks. Code 1 where a run would fail.",
        epilog="Example: bert-ds doctor --hostfile HOSTS --recipe bert-large --data DATA "
        "--output-dir RUN",
    )
    parser.add_argument("--hostfile", type=Path, metavar="FILE", help="ask these hosts, over ssh")
    add_recipe(parser, is_required=False)
    add_data(parser, is_required=False)
    parser.add_argument("--output-dir", type=Path, metavar="RUN", help="the run folder to be")
    add_json_output(parser)
    # What a host is asked for over ssh.
    parser.add_argument("--facts", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--exchange", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    # Accepted and ignored, so that the arguments of pretrain can be given as they are.
    parser.add_argument("--resume", help=argparse.SUPPRESS)
    parser.add_argument("--override", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--time-limit", help=argparse.SUPPRESS)
    parser.add_argument("--dry-run", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace, world: World) -> None:
    """Check, and print what was found.

    Raises:
        NotReadyError: a run would fail, or be wrong.
    """
    from bert_ds.config.loading import load_run_config
    from bert_ds.doctor import hosts, ranks
    from bert_ds.doctor.findings import as_json, as_text
    from bert_ds.doctor.host_facts import Wanted, look_at_this_host
    from bert_ds.doctor.judge import judge
    from bert_ds.doctor.shared_file_probe import SharedFileProbe

    config = None
    if arguments.recipe is not None:
        config = load_run_config(arguments.recipe, arguments.set)
    probe = SharedFileProbe.from_argument(arguments.probe) if arguments.probe else None
    wanted = Wanted(config, arguments.data, arguments.output_dir, probe)
    if arguments.facts:
        hosts.print_answer(look_at_this_host(wanted).as_dict())
        return
    if arguments.exchange:
        hosts.print_answer(vars(ranks.exchange_as_rank(world, hosts.EXCHANGE_S)))
        return
    if arguments.hostfile is not None:
        passed = _arguments_for_hosts(arguments)
        findings = hosts.examine_hostfile(arguments.hostfile, wanted, passed)
    elif world.world_size > 1:
        findings = ranks.examine_ranks(wanted, world)
    else:
        facts = look_at_this_host(wanted)
        findings = judge([facts], {facts.host: 1}, {}, config)
    if not world.is_main:
        return
    print(json.dumps(as_json(findings), indent=2) if arguments.json else as_text(findings))
    errors = [f"{entry.subject}: {entry.message}" for entry in findings if entry.level == "error"]
    if errors:
        raise NotReadyError(f"not ready to run: {'; '.join(errors)}")


def _arguments_for_hosts(arguments: argparse.Namespace) -> list[str]:
    """Return the arguments that each host of the hostfile gets.

    Paths are absolute. A shipped recipe that was given by its name becomes the path of its folder.

    Raises:
        ConfigError: there is no such recipe.
    """
    from bert_ds.config.loading import find_recipe

    passed: list[str] = []
    for flag, path in (
        ("--recipe", find_recipe(arguments.recipe) if arguments.recipe is not None else None),
        ("--data", arguments.data),
        ("--output-dir", arguments.output_dir),
    ):
        passed += [flag, str(path.absolute())] if path is not None else []
    return passed + (["--set", *arguments.set] if arguments.set else [])
