"""The command `bert-prep`: its parser, logging, and exit codes.

Each module of `commands` registers its own arguments, and imports what is heavy when it runs, so
that `--help` is quick. Results go to standard output, messages and progress to standard error.
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import sys
from collections.abc import Sequence

from data_prep.commands import bench, inspect, shards, vocab
from data_prep.contract.errors import DataPrepError
from data_prep.contract.screen import lasting_screen


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: as on the command line; None takes those of this process.
    """
    parsed = build_parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # pieces that the terminal cannot show
    with lasting_screen() if parsed.outlives_its_reader else contextlib.nullcontext():
        return _exit_code_of(parsed)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command line."""
    parser = argparse.ArgumentParser(prog="bert-prep", description="Text to pretraining shards.")
    # True for a command that must finish though nobody reads its output any more.
    parser.set_defaults(outlives_its_reader=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (vocab, shards, bench, inspect):
        module.add_parsers(commands)
    return parser


def _exit_code_of(parsed: argparse.Namespace) -> int:
    """Run the command and report what goes wrong."""
    logging.basicConfig(
        level=logging.INFO, format="bert-prep: %(message)s", stream=sys.stderr, force=True
    )
    try:
        code = int(parsed.run(parsed))
        sys.stdout.flush()
        return code
    except DataPrepError as err:
        print(f"bert-prep: error: {err}", file=sys.stderr)
        return err.exit_code
    except KeyboardInterrupt:
        print("bert-prep: interrupted; run the same command again to resume.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
