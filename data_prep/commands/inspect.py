"""`bert-prep verify`, `show` and `stats`: look into a dataset folder."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.commands.arguments import add_recipe, new_file
from data_prep.contract.errors import UsageError

if TYPE_CHECKING:
    from data_prep.commands.arguments import Commands


def add_parsers(commands: Commands) -> None:
    """Register the three commands."""
    verify = commands.add_parser("verify", help="check a dataset folder against its manifest")
    show = commands.add_parser("show", help="print rows as text")
    stats = commands.add_parser("stats", help="print distributions")
    for parser, run in ((verify, run_verify), (show, run_show), (stats, run_stats)):
        parser.add_argument("folder", type=Path, metavar="FOLDER", help="such as D/seq128")
        parser.set_defaults(run=run)
    show.add_argument("--split", choices=["train", "valid"], default="train")
    show.add_argument("--rows", type=int, default=3, help="rows to show (3)")
    show.add_argument("--start", type=int, default=0, help="number of the first row (0)")
    add_recipe(stats)
    stats.add_argument("--plot", type=new_file, metavar="FILE.png", help="also draw them")


def run_verify(parsed: argparse.Namespace) -> int:
    """Check every shard of a dataset folder."""
    from data_prep.contract.manifest import SPLITS, load_manifest
    from data_prep.inspect.verify import verify_folder
    from data_prep.running.progress import Progress

    manifest = load_manifest(parsed.folder)
    shards = [shard for split in SPLITS for shard in manifest.shards(split)]
    with Progress("verify", sum(shard.bytes for shard in shards), "B") as progress:
        verify_folder(parsed.folder, progress.advance)
    rows = sum(manifest.totals(split).rows for split in SPLITS)
    print(f"{parsed.folder}: {len(shards)} shards, {rows} rows, all as the manifest says.")
    return 0


def run_show(parsed: argparse.Namespace) -> int:
    """Print some rows as text."""
    from data_prep.inspect.show import show_rows

    if parsed.rows < 1:
        raise UsageError(f"--rows {parsed.rows}: must be at least 1.")
    is_coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for text in show_rows(parsed.folder, parsed.split, parsed.start, parsed.rows, is_coloured):
        print(text)
    return 0


def run_stats(parsed: argparse.Namespace) -> int:
    """Print the distributions of a dataset folder, and draw them where a file is given."""
    from data_prep.inspect.stats import describe_folder
    from data_prep.inspect.stats_plot import check_picture, draw_folder

    if parsed.plot:
        check_picture(parsed.plot)
    for line in describe_folder(parsed.folder, parsed.recipe):
        print(line)
    if parsed.plot:
        draw_folder(parsed.folder, parsed.plot)
        print(f"\n{parsed.plot}")
    return 0
