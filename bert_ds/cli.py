"""The `bert-ds` command: arguments, exit codes, and how errors are told.

Nothing heavy is imported before a command is known to be well-formed, so that `--help` is quick.
Results go to stdout, logs and progress to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage or
settings, 75 stopped on request (start the same command again), 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from bert_ds import __version__
from bert_ds.distributed import failure
from bert_ds.distributed.world import World, world_from_environment
from bert_ds.durations import seconds_of
from bert_ds.errors import BertDsError, LaunchError
from data_prep.contract.screen import lasting_screen

_TRAINING = ("pretrain", "supervise")
"""Commands that must not end because nobody reads what they print."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    # a store whose rank has gone is told by us; torch adds stacks of its own to each connection
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    command_line = list(sys.argv[1:] if argv is None else argv)
    arguments = build_parser().parse_args(command_line)
    try:
        world = world_from_environment(os.environ)
    except LaunchError as err:
        print(f"bert-ds: error: {err}", file=sys.stderr)
        return err.exit_code
    with lasting_screen() if arguments.command in _TRAINING else contextlib.nullcontext():
        _start_logging(world)
        return _exit_code_of(arguments, command_line, world)


def _exit_code_of(arguments: argparse.Namespace, command_line: list[str], world: World) -> int:
    """Run the command and report what goes wrong."""
    try:
        _run(arguments, command_line, world)
    except BertDsError as err:
        failure.report(err, world)
        return failure.leave(err.exit_code)
    except OSError as err:
        if isinstance(err, BrokenPipeError) and world.world_size == 1:
            # whoever reads the output, such as `head`, has seen enough
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
    except Exception as err:  # a fault of ours: it is shown whole, and the rank must not linger
        failure.wait_for_diagnosis(err)
        traceback.print_exc()
        failure.inform_other_ranks(f"{type(err).__name__}: {err}", 1, world)
        return failure.leave(1)
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="bert-ds", description="Pretrain BERT with DeepSpeed, evaluate it, use it, export it."
    )
    parser.add_argument("--version", action="version", version=f"bert-ds {__version__}")
    # Given by the deepspeed launcher; the rank is read from the environment instead.
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_pretrain(commands)
    _add_supervise(commands)
    _add_doctor(commands)
    _add_plan(commands)
    _add_evaluate(commands)
    _add_fill_mask(commands)
    _add_export(commands)
    _add_import(commands)
    _add_report(commands)
    _add_bench(commands)
    return parser


def _add_pretrain(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "pretrain",
        help="train all phases of a recipe, from where the run stands",
        description="Train all phases of a recipe. Started again with the same arguments it goes "
        "on from the newest checkpoint; when everything is done it says so.",
    )
    _add_recipe(command)
    command.add_argument(
        "--data", type=Path, required=True, metavar="DIR",
        help="folder with a dataset a sequence length: DIR/seq128, DIR/seq512",
    )  # fmt: skip
    command.add_argument(
        "--output-dir", type=Path, required=True, metavar="RUN", help="the run folder"
    )
    command.add_argument(
        "--resume", default="auto", metavar="{auto,never,PATH}",
        help="auto: from the newest checkpoint of RUN where there is one (default); never: refuse "
        "to go on with a run; PATH: from that checkpoint",
    )  # fmt: skip
    command.add_argument(
        "--override", nargs="+", choices=["settings", "data"], default=[],
        help="go on although this differs from what the run began with: settings (such as the "
        "learning rate), or the data (another dataset of the same vocabulary)",
    )  # fmt: skip
    command.add_argument(
        "--time-limit", type=_seconds, metavar="TIME",
        help="such as 90m, 3h50m or 3600 (seconds): stop then at the next update, save, and leave "
        "with code 75; leave room for a checkpoint below what the scheduler grants",
    )  # fmt: skip
    command.add_argument(
        "--dry-run", action="store_true", help="check settings, batches and datasets, then stop"
    )


def _add_supervise(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "supervise",
        help="start a training command, under any launcher, again when it fails",
        description="Run a command that trains, such as: bert-ds supervise --max-restarts 3 -- "
        "deepspeed --hostfile H --module bert_ds pretrain ... Where it fails it is started again "
        "and goes on from its last checkpoint. Wrong settings and a requested stop end it.",
    )
    command.add_argument(
        "--max-restarts", type=int, default=3, metavar="N",
        help="starts after failures without a new checkpoint in between (default 3); with wrong "
        "settings there are none",
    )  # fmt: skip
    command.add_argument(
        "--pause", type=float, default=10.0, metavar="S", help="seconds before (default 10)"
    )
    command.add_argument(
        "--drop-lost-hosts", action="store_true",
        help="before each start, leave out the hosts of the command's --hostfile that do not "
        "answer ssh, as far as the batch divides over the others",
    )  # fmt: skip
    command.add_argument("program", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")


def _seconds(text: str) -> float:
    """A duration: a number of seconds, or numbers with d, h, m and s."""
    try:
        return seconds_of(text)
    except ValueError as err:
        raise argparse.ArgumentTypeError(str(err)) from err


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "doctor",
        help="look whether this host, or all hosts of a run, are ready for it",
        description="Look at versions, GPUs, precision, LAMB's kernels, network, clocks, folders, "
        "datasets and limits, compare the hosts, and have them exchange data. Alone it looks at "
        "this host, under a launcher at those of all ranks. Code 1 where a run would fail.",
    )
    command.add_argument("--hostfile", type=Path, metavar="FILE", help="ask these hosts, over ssh")
    _add_recipe(command, is_required=False)
    command.add_argument("--data", type=Path, metavar="DIR", help="folder as for pretrain")
    command.add_argument("--output-dir", type=Path, metavar="RUN", help="the run folder to be")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--facts", action="store_true", help=argparse.SUPPRESS)
    command.add_argument("--exchange", action="store_true", help=argparse.SUPPRESS)
    command.add_argument("--token", help=argparse.SUPPRESS)
    # of pretrain, so that its arguments can be given as they are
    command.add_argument("--resume", help=argparse.SUPPRESS)
    command.add_argument("--override", nargs="+", help=argparse.SUPPRESS)
    command.add_argument("--time-limit", help=argparse.SUPPRESS)
    command.add_argument("--dry-run", action="store_true", help=argparse.SUPPRESS)


def _add_plan(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "plan",
        help="batches, memory and time of a recipe at a world size; needs no GPU",
        description="What a recipe means at a world size: batch arithmetic and memory by part; on "
        "a kind of GPU also the largest micro batch that fits and the time to expect.",
    )
    _add_recipe(command)
    command.add_argument("--world-size", type=int, required=True, metavar="N", help="ranks")
    command.add_argument(
        "--gpu", metavar="NAME",
        help="kind of GPU: v100-16, v100-32, a100-40, a100-80, h100, h200, l40s, ... (an unknown "
        "name prints all)",
    )  # fmt: skip
    command.add_argument("--gpus-per-host", type=int, metavar="N", help="default 8")
    command.add_argument(
        "--network-gbit-per-s", type=float, metavar="X", help="of a host, each way (default 200)"
    )
    command.add_argument(
        "--mfu", type=float, metavar="X",
        help="share of the GPU's peak that computing reaches (default 0.45, as published)",
    )  # fmt: skip
    command.add_argument(
        "--measured", type=Path, action="extend", nargs="+", default=[], metavar="FILE",
        help="what bench step --json wrote on such a GPU, instead of an assumed share; one a phase",
    )  # fmt: skip
    command.add_argument("--json", action="store_true", help="print JSON")


def _add_evaluate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "evaluate", help="held-out loss and accuracies of a run's weights, as JSON"
    )
    _add_run(command)
    _add_checkpoint(command)
    command.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="folder as for pretrain"
    )


def _add_fill_mask(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("fill-mask", help="guess the [MASK]s of a text")
    command.add_argument(
        "--run", type=Path, required=True, metavar="RUN",
        help="a run folder of pretrain, or a Hugging Face folder",
    )  # fmt: skip
    _add_checkpoint(command)
    command.add_argument("text", help="text with one or more [MASK]")
    command.add_argument("--top-k", type=int, default=5, metavar="K", help="guesses (default 5)")


def _add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "export-hf", help="write a run's weights as a Hugging Face folder"
    )
    _add_run(command)
    _add_checkpoint(command)
    command.add_argument("--output-dir", type=Path, required=True, metavar="DIR")
    command.add_argument(
        "--architecture", default="BertForPreTraining",
        choices=["BertForPreTraining", "BertForMaskedLM", "BertModel"],
        help="Hugging Face's class, which decides the heads that are written (default "
        "BertForPreTraining)",
    )  # fmt: skip


def _add_import(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "import-hf",
        help="write a recipe that trains a Hugging Face BERT further",
        description="Write a recipe folder that holds a Hugging Face BERT and trains it further: "
        "phases and DeepSpeed settings are those of --recipe, shape, weights and vocabulary are "
        "the model's.",
    )
    command.add_argument(
        "--model", type=Path, required=True, metavar="DIR",
        help="a Hugging Face folder: BertForPreTraining, BertForMaskedLM or BertModel",
    )  # fmt: skip
    command.add_argument(
        "--recipe", type=Path, required=True, metavar="FOLDER", help="such as ds_configs/bert-base"
    )
    command.add_argument("--output-dir", type=Path, required=True, metavar="DIR")


def _add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("report", help="one HTML page about a run, and a short table")
    _add_run(command)
    command.add_argument(
        "--output", type=Path, metavar="FILE", help="the page (default RUN/report.html)"
    )


def _add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("bench", help="measure a part, in a way that can be repeated")
    parts = command.add_subparsers(dest="what", required=True, metavar="PART")
    part = parts.add_parser(
        "optimizer", help="a LAMB step's time against DeepSpeed's Adam, naive ratios and bandwidth"
    )
    _add_recipe(part)
    part.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's)")
    part.add_argument("--repeats", type=int, default=7, metavar="N", help="rounds (default 7)")
    part.add_argument("--json", type=Path, metavar="FILE", help="write the numbers, too")
    part = parts.add_parser(
        "data", help="rows a second from shards to packed and padded micro batches"
    )
    part.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="a dataset folder, as DATA/seq128"
    )
    part.add_argument("--repeats", type=int, default=7, metavar="N", help="rounds (default 7)")
    part.add_argument("--json", type=Path, metavar="FILE", help="write the numbers, too")
    part = parts.add_parser(
        "step", help="a training step's sequences a second, alone or beside another one"
    )
    _add_recipe(part)
    part.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="folder as for pretrain"
    )
    part.add_argument("--phase", type=int, default=0, metavar="N", help="default 0, the first")
    part.add_argument(
        "--compare", metavar="{hf,execution.KEY=VALUE}",
        help="what is measured beside it: hf, transformers' BertForPreTraining; or our own under "
        "another setting, such as execution.batch_layout=packed",
    )  # fmt: skip
    part.add_argument(
        "--full-rows", action="store_true", help="only rows of the phase's full length"
    )
    part.add_argument(
        "--micro-batch-size", type=int, metavar="N", help="rows a forward (default: the recipe's)"
    )
    part.add_argument(
        "--accumulation", type=int, default=2, metavar="N",
        help="micro batches an update (default 2)",
    )  # fmt: skip
    part.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's)")
    part.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds (default 5)")
    part.add_argument("--json", type=Path, metavar="FILE", help="write the numbers, too")
    part = parts.add_parser(
        "checkpoint", help="seconds that saving a checkpoint takes, and loading it"
    )
    _add_recipe(part)
    part.add_argument(
        "--folder", type=Path, required=True, metavar="DIR", help="on the file system to measure"
    )
    part.add_argument("--repeats", type=int, default=3, metavar="N", help="rounds (default 3)")
    part.add_argument("--json", type=Path, metavar="FILE", help="write the numbers, too")
    part = parts.add_parser(
        "exactness", help="what one trust ratio a ZeRO shard does to a model, on real text"
    )
    _add_recipe(part)
    part.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="folder as for pretrain"
    )
    part.add_argument(
        "--ranks", type=int, nargs="+", default=[1, 8, 64], metavar="N",
        help="numbers of ranks to cut shards for (default 1 8 64)",
    )  # fmt: skip
    part.add_argument("--updates", type=int, default=100, metavar="N", help="default 100")
    part.add_argument("--json", type=Path, metavar="FILE", help="write the numbers, too")
    part.add_argument("--plot", type=Path, metavar="FILE", help="draw them as SVG")


def _add_recipe(command: argparse.ArgumentParser, is_required: bool = True) -> None:
    command.add_argument(
        "--recipe", type=Path, required=is_required, metavar="FOLDER",
        help="such as ds_configs/bert-large",
    )  # fmt: skip
    command.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE",
        help="change a setting: model.hidden_dropout_prob=0, phases.0.total_steps=20, "
        "deepspeed.zero_optimization.stage=1 (every phase), phases.1.deepspeed.... (one)",
    )  # fmt: skip


def _add_run(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--run", type=Path, required=True, metavar="RUN", help="a run folder of pretrain"
    )


def _add_checkpoint(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--checkpoint", choices=["latest", "best"], default="latest",
        help="of a run: the newest weights (default), or those that checkpoint.keep_best has kept",
    )  # fmt: skip


def _run(arguments: argparse.Namespace, command_line: list[str], world: World) -> None:
    if arguments.command == "supervise":
        from bert_ds.commands import supervise

        supervise.run(arguments)
    elif arguments.command == "plan":  # without torch, at once
        from bert_ds.commands import plan

        plan.run(arguments)
    elif arguments.command == "doctor":
        from bert_ds.commands import doctor

        doctor.run(arguments, world)
    elif arguments.command == "pretrain":
        from bert_ds.commands import pretrain

        pretrain.run(arguments, command_line, world)
    elif arguments.command == "report":
        from bert_ds.commands import report

        report.run(arguments)
    elif arguments.command == "bench":
        from bert_ds.commands import bench

        bench.run(arguments, world)
    else:
        from bert_ds.commands import inference

        if arguments.command == "evaluate":
            inference.evaluate(arguments, world)
        elif arguments.command == "fill-mask":
            inference.fill_mask(arguments)
        elif arguments.command == "import-hf":
            inference.import_hf(arguments)
        else:
            inference.export_hf(arguments)


def _start_logging(world: World) -> None:
    """Rank 0 tells what happens; the other ranks only what is wrong."""
    level = logging.INFO if world.is_main else logging.WARNING
    logging.basicConfig(stream=sys.stderr, level=level, format="%(message)s")
