"""`bert-ds pretrain`: train the phases of a recipe, or resume a run."""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bert_ds.commands.arguments import add_data, add_recipe
from bert_ds.durations import seconds_of
from bert_ds.errors import StopRequested, TrainingError

if TYPE_CHECKING:
    from bert_ds.commands.arguments import Commands
    from bert_ds.config.recipe import RunConfig
    from bert_ds.distributed.world import World
    from bert_ds.plan import RunPlan
    from bert_ds.train.run import Run


def add_parser(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "pretrain",
        help="train all phases of a recipe, or resume a run",
        description="Train all phases of a recipe. Started again with the same arguments it "
        "resumes from the newest checkpoint; a complete run is left as it is.",
        epilog="Example: deepspeed --num_gpus 8 --module bert_ds pretrain --recipe bert-large "
        "--data DATA --output-dir RUN",
    )
    add_recipe(parser)
    add_data(parser)
    parser.add_argument(
        "--output-dir", type=Path, required=True, metavar="RUN", help="the run folder"
    )
    parser.add_argument(
        "--resume", default="auto", metavar="{auto,never,PATH}",
        help="auto: from the newest checkpoint of RUN where there is one (default); never: refuse "
        "to resume a run; PATH: from that checkpoint",
    )  # fmt: skip
    parser.add_argument(
        "--override", nargs="+", choices=["settings", "data"], default=[],
        help="resume although this differs from what the run began with: settings (such as the "
        "learning rate), or the data (another dataset of the same vocabulary)",
    )  # fmt: skip
    parser.add_argument(
        "--time-limit", type=_seconds, metavar="TIME",
        help="such as 90m, 3h50m or 3600 (seconds): stop then at the next update, save, and leave "
        "with code 75; leave room for a checkpoint below what the scheduler grants",
    )  # fmt: skip
    parser.add_argument(
        "--dry-run", action="store_true", help="check settings, batches and datasets, then stop"
    )
    parser.set_defaults(execute=run, is_training=True)


def _seconds(text: str) -> float:
    """Read a duration: a number of seconds, or numbers with d, h, m and s."""
    try:
        return seconds_of(text)
    except ValueError as err:
        raise argparse.ArgumentTypeError(str(err)) from err


def run(arguments: argparse.Namespace, world: World) -> None:
    """Train the recipe's phases from where the run stands.

    Raises:
        TrainingError: training has failed, or a file of the run cannot be read or written.
        StopRequested: the run was asked to stop, and has saved its state.
    """
    from bert_ds.config.loading import load_run_config
    from bert_ds.distributed.communicator import shutdown
    from bert_ds.plan import plan_run
    from bert_ds.train.pretrain import run_pretraining
    from bert_ds.train.start import Request, is_complete, start_run

    began = time.monotonic()
    config = load_run_config(arguments.recipe, arguments.set)
    plan = plan_run(config, world.world_size)  # refuses a batch that does not divide
    if arguments.dry_run:
        _check_only(arguments, config, plan, world)
        return
    if is_complete(arguments.output_dir, config, arguments.resume):
        if world.is_main:
            print(f"{arguments.output_dir} is complete, nothing to do")
        return
    request = Request(
        data=arguments.data,
        output_dir=arguments.output_dir,
        resume=arguments.resume,
        overrides=arguments.override,
        deadline=None if arguments.time_limit is None else began + arguments.time_limit,
        command_line=arguments.command_line,
    )
    started = start_run(config, world, request)
    try:
        run_pretraining(started, arguments.resume)
    except StopRequested:  # raised on all ranks together
        shutdown()
        raise
    except TrainingError:
        _record_failure(started)
        raise
    except OSError as err:
        _record_failure(started)
        raise TrainingError(
            f"a file of the run could not be read or written, its folder is "
            f"{started.folder.path}: {err}. Repair that and start the same command again: it "
            "resumes from the last checkpoint"
        ) from err
    shutdown()
    if world.is_main:
        print(f"{arguments.output_dir} is complete")


def _check_only(
    arguments: argparse.Namespace, config: RunConfig, plan: RunPlan, world: World
) -> None:
    """Check the datasets, and print the plan."""
    from bert_ds.plan import passes_as_text, plan_as_text
    from bert_ds.train.setup import open_phase_data
    from bert_ds.train.start import judge_phase_data

    on_this_host = world.local_rank, world.local_world_size
    opened = open_phase_data(config, arguments.data, None, *on_this_host)
    if world.is_main:
        judge_phase_data(opened)
        print(plan_as_text(plan))
        for phase, data in zip(config.phases, opened, strict=True):
            print(passes_as_text(phase, data.folder, data.manifest.totals("train").rows))
        print("settings, batches and datasets fit; nothing was started (--dry-run)")


def _record_failure(run: Run) -> None:
    """Write the failure to the run's summary, if that is still possible."""
    if run.is_main:
        with contextlib.suppress(OSError):
            run.folder.update_summary(status="failed")
