"""`bert-prep shards`: turn text into pretraining shards, on all cores or all ranks of MPI."""

from __future__ import annotations

import argparse
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.commands.arguments import add_inputs, add_recipe, new_file, size
from data_prep.contract.errors import DataPrepError, UsageError

if TYPE_CHECKING:
    from data_prep.commands.arguments import Commands
    from data_prep.stages.plan import ShardOptions


def add_parsers(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser("shards", help="make pretraining shards out of text")
    add_inputs(parser)
    add = parser.add_argument
    add("--vocab", type=Path, required=True, metavar="vocab.txt", help="one piece per line")
    add("--output-dir", type=Path, required=True, metavar="D", help="gets one folder per length")
    add(
        "--sequence-length", type=int, nargs="+", required=True, metavar="N", help="such as 128 512"
    )
    _add_rows(parser)
    _add_layout(parser)
    add("-j", "--jobs", type=int, metavar="N", help="processes (all cores)")
    add(
        "--timings", type=new_file, metavar="FILE",
        help="write the seconds of each stage and the peak memory to this file",
    )  # fmt: skip
    add_recipe(parser)
    parser.set_defaults(run=run, outlives_its_reader=True)


def _add_rows(parser: argparse.ArgumentParser) -> None:
    """Add what decides the rows, besides text, vocabulary and lengths."""
    add = parser.add_argument
    add("--max-predictions", type=int, nargs="+", metavar="N", help="for each length (20, 80)")
    add("--duplicate-factor", type=int, default=5, metavar="K", help="uses of each document (5)")
    add("--seed", type=int, default=0, metavar="S", help="of all random numbers (0)")
    add("--weights", type=float, nargs="+", metavar="W", help="uses of each --input, relative (1)")
    add("--valid-fraction", type=float, default=0.01, metavar="F", help="held out (0.01)")
    add(
        "--masking", choices=["token", "whole_word", "none"], default="token",
        help="of single pieces or whole words; none leaves it to the reader (token)",
    )  # fmt: skip
    add(
        "--pairs", choices=["next_sentence", "sentence_order", "none"], default="next_sentence",
        help="meaning of the label; none fills rows with sentences of one document (next_sentence)",
    )  # fmt: skip
    add(
        "--random-next", choices=["google", "balanced"], default="google",
        help="second segments that are random: over half of them, or half (google)",
    )  # fmt: skip
    add(
        "--short-sequence-probability", type=float, default=0.1, metavar="P",
        help="of a random shorter row (0.1)",
    )  # fmt: skip
    add(
        "--sentences", default="rules", metavar="HOW",
        help="how text is split: rules, lines (one sentence per line), or by a package: blingfire, "
        "nupunkt, sentencex:LANGUAGE (rules)",
    )  # fmt: skip


def _add_layout(parser: argparse.ArgumentParser) -> None:
    """Add what decides the order of the rows, and the files that they lie in."""
    add = parser.add_argument
    add(
        "--memory-per-worker", type=size, default=1 << 30, metavar="SIZE",
        help="such as 512M or 4G (1G); decides how documents are grouped",
    )  # fmt: skip
    add("--rows-per-block", type=int, default=1_024, metavar="N", help="rows per block (1024)")
    add("--blocks-per-shard", type=int, default=256, metavar="N", help="blocks per tar (256)")


def run(parsed: argparse.Namespace) -> int:
    """Make the shards; print the dataset folders on the root rank."""
    from data_prep.running.executor import make_executor

    with make_executor(parsed.jobs) as executor:
        # Imported while the workers of the executor do the same.
        from data_prep.inspect.recipes import read_phases
        from data_prep.inspect.stats import log_result
        from data_prep.pieces.vocabulary_job import vocabulary_with_casing
        from data_prep.running.files import write_json
        from data_prep.running.timings import StageClock
        from data_prep.stages.prepare import prepare_shards
        from data_prep.stages.work_folder import Preparation

        clock = StageClock()
        if not executor.is_root:
            logging.getLogger().setLevel(logging.ERROR)
        try:
            phases = read_phases(parsed.recipe)
            preparation = Preparation(
                inputs=parsed.input,
                vocabulary_path=parsed.vocab,
                vocabulary=vocabulary_with_casing(parsed.vocab, parsed.cased, parsed.strip_accents),
                output_dir=parsed.output_dir,
                options=_shard_options(parsed),
                weights=parsed.weights,
                clock=clock,
            )
            folders = prepare_shards(preparation, executor, partial(log_result, phases=phases))
        except DataPrepError as err:
            if executor.is_root:
                raise
            return err.exit_code  # rank 0 reports what is wrong
        if executor.is_root:
            print("\n".join(map(str, folders)))
    if executor.is_root and parsed.timings:
        write_json(parsed.timings, clock.to_json())
    return 0


def _shard_options(parsed: argparse.Namespace) -> ShardOptions:
    """Return the parameters of a preparation; raise UsageError where they do not fit each other."""
    from data_prep.contract.masking import default_max_predictions
    from data_prep.stages.plan import ShardOptions

    lengths = tuple(parsed.sequence_length)
    predictions = tuple(parsed.max_predictions or map(default_max_predictions, lengths))
    if len(predictions) != len(lengths):
        raise UsageError(
            f"--max-predictions has {len(predictions)} values, --sequence-length {len(lengths)}; "
            "give one for each length."
        )
    return ShardOptions(
        sequence_length=lengths,
        max_predictions_per_seq=predictions,
        duplicate_factor=parsed.duplicate_factor,
        seed=parsed.seed,
        masking=parsed.masking,
        pairs=parsed.pairs,
        random_next=parsed.random_next,
        short_sequence_probability=parsed.short_sequence_probability,
        valid_fraction=parsed.valid_fraction,
        rows_per_block=parsed.rows_per_block,
        blocks_per_shard=parsed.blocks_per_shard,
        sentences=parsed.sentences,
        memory_per_worker=parsed.memory_per_worker,
        one_document_per_file=parsed.one_document_per_file,
        json_field=parsed.json_field,
    )
