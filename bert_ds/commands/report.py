"""`bert-ds report`: one HTML page about a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bert_ds.commands.arguments import add_run

if TYPE_CHECKING:
    from bert_ds.commands.arguments import Commands
    from bert_ds.distributed.world import World


def add_parser(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser("report", help="one HTML page about a run, and a short table")
    add_run(parser)
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="the page (default RUN/report.html)"
    )
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace, world: World) -> None:
    """Write the page and print the table."""
    from bert_ds.report import summary_table, write_report

    page = write_report(arguments.run, arguments.output)
    print(summary_table(arguments.run))
    if arguments.output is not None:
        print(f"page            {page}")
