"""`bert-prep bench`: measure a preparation, stage by stage, or what a file costs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.commands.arguments import add_cased, add_vocab_size, new_file

if TYPE_CHECKING:
    from data_prep.commands.arguments import Commands


def add_parsers(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser("bench", help="measure a preparation, stage by stage")
    add = parser.add_argument
    add("inputs", nargs="+", metavar="PATH", help="text, as --input of shards")
    add("--vocab", type=Path, metavar="vocab.txt", help="pieces (trained on the text first)")
    add_vocab_size(parser)
    add_cased(parser)
    add("--sequence-length", type=int, default=128, metavar="N", help="tokens per row (128)")
    add("--duplicate-factor", type=int, default=1, metavar="K", help="uses of each document (1)")
    add("-j", "--jobs", type=int, nargs="+", default=[1], metavar="N", help="processes (1)")
    add("--repeats", type=int, default=3, metavar="N", help="measured runs of each (3)")
    add(
        "--files", type=int, nargs="+", metavar="N",
        help="measure what a file costs: N files of one document of the text each",
    )  # fmt: skip
    add("--json", type=new_file, metavar="FILE", help="write the figures to this file")
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Measure, and print the figures."""
    from data_prep.bench.many_files import run_files_bench
    from data_prep.bench.throughput import BenchOptions, run_bench

    options = BenchOptions(
        inputs=parsed.inputs,
        vocabulary=parsed.vocab,
        vocab_size=parsed.vocab_size,
        cased=parsed.cased,
        sequence_length=parsed.sequence_length,
        duplicate_factor=parsed.duplicate_factor,
        jobs=parsed.jobs,
        repeats=parsed.repeats,
    )
    lines = (
        run_files_bench(options, parsed.files, parsed.json)
        if parsed.files
        else run_bench(options, parsed.json)
    )
    for line in lines:
        print(line, flush=True)
    return 0
