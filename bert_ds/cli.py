"""The `bert-ds` command: its parser, logging, and exit codes.

Each module of `commands` registers its own arguments and imports what it needs when it runs, so
that `--help` is quick. Results go to stdout, logs and progress to stderr. Exit codes: 0 done,
1 failed, 2 wrong usage or settings, 75 stopped on request (start the same command again), 130
interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Sequence

from bert_ds import __version__
from bert_ds.commands import bench, doctor, inference, plan, pretrain, report, supervise
from bert_ds.distributed import failure
from bert_ds.distributed.world import World, world_from_environment
from bert_ds.errors import BertDsError, LaunchError
from data_prep.contract.screen import lasting_screen


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    # a store whose rank has gone is reported by us; torch adds stacks of its own to each connection
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    command_line = list(sys.argv[1:] if argv is None else argv)
    arguments = build_parser().parse_args(command_line)
    arguments.command_line = command_line
    try:
        world = world_from_environment(os.environ)
    except LaunchError as err:
        print(f"bert-ds: error: {err}", file=sys.stderr)
        return err.exit_code
    # a run must not end when its output is no longer read
    with lasting_screen() if arguments.is_training else contextlib.nullcontext():
        _start_logging(world)
        return _exit_code_of(arguments, world)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="bert-ds", description="Pretrain BERT with DeepSpeed, evaluate it, use it, export it."
    )
    parser.add_argument("--version", action="version", version=f"bert-ds {__version__}")
    # The deepspeed launcher gives it; the rank is read from the environment instead.
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    parser.set_defaults(is_training=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (pretrain, supervise, doctor, plan, inference, report, bench):
        module.add_parser(commands)
    return parser


def _exit_code_of(arguments: argparse.Namespace, world: World) -> int:
    """Run the command and report what goes wrong."""
    try:
        arguments.execute(arguments, world)
    except BertDsError as err:
        failure.report(err, world)
        return failure.leave(err.exit_code)
    except OSError as err:
        if isinstance(err, BrokenPipeError) and world.world_size == 1:
            # the reader of the output, such as `head`, has closed it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        print(f"bert-ds: error: {err}", file=sys.stderr)
        failure.inform_other_ranks(str(err), 1, world)
        return failure.leave(1)
    except KeyboardInterrupt:
        if arguments.command == "pretrain" and world.is_main:
            print(
                "bert-ds: interrupted; what was trained since the last checkpoint is lost, and the "
                "same command resumes from there",
                file=sys.stderr,
            )
        return failure.leave(130)
    except Exception as err:  # a fault of ours: print its traceback, and end this rank at once
        failure.wait_for_diagnosis(err)
        traceback.print_exc()
        failure.inform_other_ranks(f"{type(err).__name__}: {err}", 1, world)
        return failure.leave(1)
    return 0


def _start_logging(world: World) -> None:
    """Log progress on rank 0, and only warnings on the other ranks."""
    level = logging.INFO if world.is_main else logging.WARNING
    logging.basicConfig(stream=sys.stderr, level=level, format="%(message)s")
