"""The command `bert-prep`: arguments in, one job, exit code out.

Results go to standard output, messages and progress to standard error. Exit 0 done, 1 failed, 2 bad
usage, 130 interrupted. Everything heavy is imported by the job that needs it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.contract.errors import DataPrepError, UsageError
from data_prep.contract.screen import lasting_screen

if TYPE_CHECKING:
    from data_prep.stages.plan import ShardOptions


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: as on the command line; None takes those of this process.

    Returns:
        The exit code.
    """
    parsed = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # pieces that the terminal cannot show
    with lasting_screen() if parsed.job in (_vocab, _shards) else contextlib.nullcontext():
        return _exit_code_of(parsed)


def _exit_code_of(parsed: argparse.Namespace) -> int:
    """Run the command and report what goes wrong."""
    logging.basicConfig(
        level=logging.INFO, format="bert-prep: %(message)s", stream=sys.stderr, force=True
    )
    try:
        code = int(parsed.job(parsed))
        sys.stdout.flush()
        return code
    except DataPrepError as err:
        print(f"bert-prep: error: {err}", file=sys.stderr)
        return err.exit_code
    except KeyboardInterrupt:
        print("bert-prep: interrupted; run the same command again to go on.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="bert-prep", description="Text to pretraining shards.")
    jobs = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_vocab(jobs.add_parser("vocab", help="train a WordPiece vocabulary"))
    _add_shards(jobs.add_parser("shards", help="make pretraining shards out of text"))
    _add_bench(jobs.add_parser("bench", help="measure a preparation, stage by stage"))
    verify = jobs.add_parser("verify", help="check a dataset folder against its manifest")
    show = jobs.add_parser("show", help="print rows as text")
    stats = jobs.add_parser("stats", help="print distributions")
    for command, job in ((verify, _verify), (show, _show), (stats, _stats)):
        command.add_argument("folder", type=Path, metavar="FOLDER", help="such as D/seq128")
        command.set_defaults(job=job)
    show.add_argument("--split", choices=["train", "valid"], default="train")
    show.add_argument("--rows", type=int, default=3, help="rows to show (3)")
    show.add_argument("--start", type=int, default=0, help="number of the first row (0)")
    _add_recipe(stats)
    stats.add_argument(
        "--plot", type=_new_file, metavar="FILE.png", help="draw the distributions too"
    )
    return parser


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the arguments about the text and how it is cut into pieces."""
    parser.add_argument(
        "--input",
        nargs="+",
        required=True,
        metavar="PATH",
        help="files or folders of .txt (documents separated by blank lines) or .jsonl, "
        "also .gz and .zst; links are followed",
    )
    parser.add_argument(
        "--one-document-per-file", action="store_true", help="a .txt file is one document"
    )
    parser.add_argument(
        "--json-field", default="text", metavar="NAME", help="field of .jsonl lines (text)"
    )
    parser.add_argument("--cased", action="store_true", help="keep upper case and accents")
    parser.add_argument(
        "--strip-accents",
        action=argparse.BooleanOptionalAction,
        help="remove accents (follows the case)",
    )


def _add_vocab(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `vocab`."""
    _add_inputs(parser)
    parser.add_argument(
        "--vocab-size", type=int, default=30_522, metavar="N", help="pieces (30522)"
    )
    parser.add_argument(
        "--limit-alphabet",
        type=int,
        default=1_000,
        metavar="N",
        help="most different characters; raise it for Chinese or Japanese (1000)",
    )
    parser.add_argument(
        "--sample-bytes",
        type=_size,
        metavar="SIZE",
        help="look at about so much of a large corpus, such as 2G (all of it)",
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="vocab.txt", help="gets a record next to it"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a vocabulary that was made otherwise"
    )
    parser.set_defaults(job=_vocab)


def _add_shards(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `shards`."""
    _add_inputs(parser)
    add = parser.add_argument
    add("--vocab", type=Path, required=True, metavar="vocab.txt", help="a piece a line")
    add("--output-dir", type=Path, required=True, metavar="D", help="gets a folder a length")
    add(
        "--sequence-length", type=int, nargs="+", required=True, metavar="N", help="such as 128 512"
    )
    _add_shard_options(parser)
    add("-j", "--jobs", type=int, metavar="N", help="processes (all cores)")
    add(
        "--timings",
        type=_new_file,
        metavar="FILE",
        help="write seconds a stage and peak memory there",
    )
    _add_recipe(parser)
    parser.set_defaults(job=_shards)


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    """Add the recipe whose epochs are reported."""
    parser.add_argument(
        "--recipe",
        type=Path,
        metavar="RECIPE",
        help="say how many epochs this recipe (a folder, or a name such as bert-base) trains; "
        "without it, the published one for BERT-large",
    )


def _add_shard_options(parser: argparse.ArgumentParser) -> None:
    """Add what decides the bytes of the shards, besides text, vocabulary and lengths."""
    add = parser.add_argument
    add("--max-predictions", type=int, nargs="+", metavar="N", help="for each length (20, 80)")
    add("--duplicate-factor", type=int, default=5, metavar="K", help="uses of each document (5)")
    add("--seed", type=int, default=0, metavar="S", help="of all random numbers (0)")
    add("--weights", type=float, nargs="+", metavar="W", help="uses of each --input, relative (1)")
    add("--valid-fraction", type=float, default=0.01, metavar="F", help="held out (0.01)")
    add(
        "--masking",
        choices=["token", "whole_word", "none"],
        default="token",
        help="of single pieces or whole words; none leaves it to the reader (token)",
    )
    add(
        "--pairs",
        choices=["next_sentence", "sentence_order", "none"],
        default="next_sentence",
        help="what the label says; none fills rows with sentences of one document (next_sentence)",
    )
    add(
        "--random-next",
        choices=["google", "balanced"],
        default="google",
        help="second segments that are random: over half of them, or half (google)",
    )
    add(
        "--short-sequence-probability",
        type=float,
        default=0.1,
        metavar="P",
        help="of a random shorter row (0.1)",
    )
    add(
        "--sentences",
        default="rules",
        metavar="HOW",
        help="how text is split: rules, lines (a sentence a line), or by a package: blingfire, "
        "nupunkt, sentencex:LANGUAGE (rules)",
    )
    add(
        "--memory-per-worker",
        type=_size,
        default=1 << 30,
        metavar="SIZE",
        help="such as 512M or 4G (1G); decides how documents are grouped",
    )
    add("--rows-per-block", type=int, default=1_024, metavar="N", help="rows a block (1024)")
    add("--blocks-per-shard", type=int, default=256, metavar="N", help="blocks a tar (256)")


def _new_file(text: str) -> Path:
    """Return a file to be written, whose folder is there."""
    path = Path(text)
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no folder {path.absolute().parent}")
    return path


def _size(text: str) -> int:
    """Return bytes out of a number and a unit."""
    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    number = text.rstrip("KMGTiB")
    unit = text[len(number) :].removesuffix("B").removesuffix("i")
    try:
        return int(float(number) * units[unit])
    except (KeyError, ValueError, OverflowError) as err:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 512M or 4G") from err


def _add_bench(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `bench`."""
    parser.add_argument("inputs", nargs="+", metavar="PATH", help="text, as --input of shards")
    add = parser.add_argument
    add("--vocab", type=Path, metavar="vocab.txt", help="pieces (trained on the text first)")
    add("--vocab-size", type=int, default=30_522, metavar="N", help="pieces to train (30522)")
    add("--cased", action="store_true", help="keep upper case and accents")
    add("--sequence-length", type=int, default=128, metavar="N", help="tokens a row (128)")
    add("--duplicate-factor", type=int, default=1, metavar="K", help="uses of each document (1)")
    add("-j", "--jobs", type=int, nargs="+", default=[1], metavar="N", help="processes (1)")
    add("--repeats", type=int, default=3, metavar="N", help="measured runs of each (3)")
    add(
        "--files",
        type=int,
        nargs="+",
        metavar="N",
        help="measure what a file costs: so many files of a document of the text each",
    )
    add("--json", type=_new_file, metavar="FILE", help="write the figures there")
    parser.set_defaults(job=_bench)


def _vocab(parsed: argparse.Namespace) -> int:
    """Run `bert-prep vocab`."""
    from data_prep.pieces.vocabulary_job import VocabularyJob, make_vocabulary
    from data_prep.pieces.vocabulary_training import VocabularyOptions
    from data_prep.text.inputs import TextFormat

    lowercase = not parsed.cased
    options = VocabularyOptions(
        size=parsed.vocab_size,
        lowercase=lowercase,
        strip_accents=lowercase if parsed.strip_accents is None else parsed.strip_accents,
        limit_alphabet=parsed.limit_alphabet,
    )
    text_format = TextFormat(parsed.one_document_per_file, parsed.json_field)
    job = VocabularyJob(
        parsed.input, text_format, options, parsed.output, parsed.overwrite, parsed.sample_bytes
    )
    print(make_vocabulary(job))
    return 0


def _shards(parsed: argparse.Namespace) -> int:
    """Run `bert-prep shards`."""
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
    """Return the parameters of a preparation; UsageError where they do not fit each other."""
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


def _verify(parsed: argparse.Namespace) -> int:
    """Run `bert-prep verify`."""
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


def _show(parsed: argparse.Namespace) -> int:
    """Run `bert-prep show`."""
    from data_prep.inspect.show import show_rows

    if parsed.rows < 1:
        raise UsageError(f"--rows {parsed.rows}: must be at least 1.")
    is_coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for text in show_rows(parsed.folder, parsed.split, parsed.start, parsed.rows, is_coloured):
        print(text)
    return 0


def _stats(parsed: argparse.Namespace) -> int:
    """Run `bert-prep stats`."""
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


def _bench(parsed: argparse.Namespace) -> int:
    """Run `bert-prep bench`."""
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
