"""`bert-ds pretrain`: check everything that can be checked, bring the ranks together, train."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bert_ds.config.loading import load_run_config
from bert_ds.config.recipe import RunConfig
from bert_ds.distributed.communicator import Communicator, init_process_group, shutdown
from bert_ds.distributed.heartbeat import current
from bert_ds.distributed.world import World
from bert_ds.engine import check_precision
from bert_ds.errors import StopRequested, TrainingError, as_wrong_settings
from bert_ds.model.execution import check_execution, prepare_process
from bert_ds.plan import num_parameters, passes_as_text, plan_as_text, plan_run, scaled
from bert_ds.train import setup
from bert_ds.train.pretrain import run_pretraining
from bert_ds.train.run import Run
from bert_ds.train.run_folder import RunFolder, setting_differences
from bert_ds.train.stop import StopFlag, launcher_processes
from bert_ds.train.watchdog import Watchdog
from data_prep.contract.quality import judge_dataset
from data_prep.contract.screen import write_to_screen

log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace, command_line: list[str], world: World) -> None:
    """Train the recipe's phases from where the run stands."""
    config = load_run_config(arguments.recipe, arguments.set)
    plan = plan_as_text(plan_run(config, world.world_size))
    if arguments.dry_run:
        on_this_host = world.local_rank, world.local_world_size
        opened = setup.open_phase_data(config, arguments.data, None, *on_this_host)
        if world.is_main:
            judge_phase_data(opened)
            print(plan)
            for phase, data in zip(config.phases, opened, strict=True):
                print(passes_as_text(phase, data.folder, data.manifest.totals("train").rows))
            print("settings, batches and datasets fit; nothing was started (--dry-run)")
        return
    if _is_complete(arguments.output_dir, config, arguments.resume):
        if world.is_main:
            print(f"{arguments.output_dir} is complete, nothing to do")
        return
    prepared = _prepare(arguments, config, world, command_line)
    try:
        run_pretraining(prepared, arguments.resume)
    except StopRequested:  # raised on all ranks together
        shutdown()
        raise
    except TrainingError:
        _say_that_it_failed(prepared)
        raise
    except OSError as err:
        _say_that_it_failed(prepared)
        raise TrainingError(
            f"a file of the run could not be read or written, its folder is "
            f"{prepared.folder.path}: {err}. When that is mended, the same command goes on from "
            "the last checkpoint"
        ) from err
    shutdown()
    if world.is_main:
        print(f"{arguments.output_dir} is complete")


def judge_phase_data(opened: Sequence[setup.PhaseData]) -> None:
    """Warn about shares that make the data worth little or nothing, once for each dataset."""
    for folder, manifest in {entry.folder: entry.manifest for entry in opened}.items():
        for finding in judge_dataset(manifest):
            log.warning("%s: %s", folder, "\n".join(finding.lines()).removeprefix("WARNING "))


def _say_that_it_failed(run: Run) -> None:
    """In the summary, where that can still be written."""
    if run.is_main:
        with contextlib.suppress(OSError):
            run.folder.update_summary(status="failed")


def _prepare(
    arguments: argparse.Namespace,
    config: RunConfig,
    world: World,
    command_line: list[str],
) -> Run:
    """Bring the ranks together, claim the run folder, open the datasets."""
    deadline = None
    if arguments.time_limit is not None:
        deadline = time.monotonic() + arguments.time_limit
    device = setup.select_device(world)
    for phase in config.phases:
        check_precision(phase.name, phase.deepspeed.precision)
    check_execution(config.execution, device)
    prepare_process(config.execution)
    init_process_group(world, device, heartbeat_s=config.heartbeat_s, meeting_s=config.meeting_s)
    comm = Communicator(world, device)
    folder = RunFolder(arguments.output_dir)

    def claim() -> None:
        if world.is_main:
            folder.claim()
            folder.stop_file.unlink(missing_ok=True)
            with as_wrong_settings():
                folder.check_belongs_to(
                    config, arguments.resume == "never", "settings" in arguments.override
                )

    comm.together(claim)
    part, num_parts = comm.among_equals(setup.files_seen(config, arguments.data))

    def open_data() -> list[setup.PhaseData]:
        with as_wrong_settings():
            return setup.open_phase_data(config, arguments.data, None, part, num_parts)

    data = comm.together(open_data)
    if world.is_main:
        _announce(config, world, device)
        judge_phase_data(data)
    launchers = launcher_processes() if world.launcher == "torch" else ()
    stop = StopFlag(launchers, deadline)
    if world.is_main:
        stop = StopFlag(launchers, deadline, folder.stop_file, acknowledge=write_to_screen)
    watchdog = Watchdog(world.name, config.watchdog_s, _end_with_all)
    return Run(
        config,
        world,
        comm,
        device,
        folder,
        data,
        stop,
        watchdog,
        _origin(command_line),
        data_may_differ="data" in arguments.override,
    )


def _end_with_all(exit_code: int) -> None:
    """End this rank, whose watchdog has told why; those on other hosts hear of it."""
    peers = current()
    if peers is not None:
        peers.tell("it made no progress (watchdog_s); its screen says where it stood", exit_code)
    os._exit(exit_code)


def _announce(config: RunConfig, world: World, device: torch.device) -> None:
    """Say once what is about to run, and on what."""
    deepspeed = config.phases[0].deepspeed
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    log.info(
        "%s: %d rank%s on %s, %s, ZeRO stage %d, %s",
        config.recipe,
        world.world_size,
        "s" if world.world_size > 1 else "",
        place,
        deepspeed.precision,
        deepspeed.zero_stage,
        scaled(num_parameters(config.model), "parameters"),
    )


def _is_complete(output_dir: Path, config: RunConfig, resume: str) -> bool:
    """Whether the folder holds this very run, all phases trained and evaluated."""
    folder = RunFolder(output_dir)
    if resume != "auto" or not folder.summary.exists():
        return False
    former = folder.read_config()
    is_same = former is not None and not list(setting_differences(former, config))
    return is_same and folder.read_summary().get("status") == "complete"


def _origin(command_line: list[str]) -> dict[str, Any]:
    """How a run was started: command, package versions, and the commit where there is one."""
    try:
        commit = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        commit = None  # installed from a wheel, or without git
    given = [word for word in command_line if not word.startswith("--local_rank=")]
    return {
        "command": shlex.join(["bert-ds", *given]),
        "commit": commit,
        "versions": setup.package_versions(),
    }
