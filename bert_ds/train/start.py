"""The start of a run: checks, the rendezvous, the claim of the run folder, the datasets.

The order matters. Settings and kernels are checked before the rendezvous, so that a wrong setting
costs only a second. The run folder is claimed before the datasets are opened, and only rank 0
writes to it.
"""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bert_ds.config.recipe import RunConfig
from bert_ds.distributed.communicator import Communicator, init_process_group
from bert_ds.distributed.failure import membership
from bert_ds.distributed.world import World
from bert_ds.engine import check_precision
from bert_ds.errors import as_wrong_settings
from bert_ds.model.execution import check_execution, prepare_process
from bert_ds.plan import num_parameters, scaled
from bert_ds.train import setup
from bert_ds.train.run import Run
from bert_ds.train.run_folder import RunFolder, setting_differences
from bert_ds.train.stop import StopFlag, launcher_processes
from bert_ds.train.watchdog import Watchdog
from data_prep.contract.quality import judge_dataset
from data_prep.contract.screen import write_to_screen

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """What the user asks for besides the settings."""

    data: Path
    """The folder that holds the datasets."""
    output_dir: Path
    """The run folder."""
    resume: str = "auto"
    """`auto`, `never`, or the path of a checkpoint."""
    overrides: Sequence[str] = ()
    """What may differ from the run's first start: `settings`, `data`."""
    deadline: float | None = None
    """Time of `time.monotonic` at which the run must stop, seconds; None for no end."""
    command_line: Sequence[str] = ()
    """The arguments of the command, which are kept in the run folder."""


def start_run(config: RunConfig, world: World, request: Request) -> Run:
    """Connect the ranks, claim the run folder and open the datasets.

    Args:
        config: settings of the run.
        world: this rank.
        request: what the user asks for besides.
    """
    device = setup.select_device(world)
    for phase in config.phases:
        check_precision(phase.name, phase.deepspeed.precision)
    check_execution(config.execution, device)
    prepare_process(config.execution)
    init_process_group(
        world,
        device,
        heartbeat_s=config.heartbeat_s,
        rendezvous_timeout_s=config.rendezvous_timeout_s,
    )
    comm = Communicator(world, device)
    folder = RunFolder(request.output_dir)

    def claim() -> None:
        if world.is_main:
            folder.claim()
            folder.stop_file.unlink(missing_ok=True)
            with as_wrong_settings():
                folder.check_belongs_to(
                    config, request.resume == "never", "settings" in request.overrides
                )

    comm.run_on_all_ranks(claim)
    part, num_parts = comm.among_equals(setup.files_seen(config, request.data))

    def open_data() -> list[setup.PhaseData]:
        with as_wrong_settings():
            return setup.open_phase_data(config, request.data, None, part, num_parts)

    data = comm.run_on_all_ranks(open_data)
    if world.is_main:
        _log_start(config, world, device)
        judge_phase_data(data)
    return Run(
        config,
        world,
        comm,
        device,
        folder,
        data,
        _stop_flag(world, folder, request.deadline),
        Watchdog(world.name, config.watchdog_s, _end_all_ranks),
        _origin(request.command_line),
        data_may_differ="data" in request.overrides,
    )


def judge_phase_data(opened: Sequence[setup.PhaseData]) -> None:
    """Log a warning for each sign of data of low quality, once for each dataset."""
    for folder, manifest in {entry.folder: entry.manifest for entry in opened}.items():
        for finding in judge_dataset(manifest):
            log.warning("%s: %s", folder, "\n".join(finding.lines()).removeprefix("WARNING "))


def is_complete(output_dir: Path, config: RunConfig, resume: str) -> bool:
    """Return whether a folder holds this very run, with all phases trained and evaluated.

    Args:
        output_dir: the run folder.
        config: settings of the run that is asked for.
        resume: `auto`, `never`, or the path of a checkpoint; only `auto` may find it complete.
    """
    folder = RunFolder(output_dir)
    if resume != "auto" or not folder.summary.exists():
        return False
    former = folder.read_config()
    is_same = former is not None and not list(setting_differences(former, config))
    return is_same and folder.read_summary().get("status") == "complete"


def _stop_flag(world: World, folder: RunFolder, deadline: float | None) -> StopFlag:
    launchers = launcher_processes() if world.launcher == "torch" else ()
    if world.is_main:
        return StopFlag(launchers, deadline, folder.stop_file, acknowledge=write_to_screen)
    return StopFlag(launchers, deadline)


def _end_all_ranks(exit_code: int) -> None:
    """Report to the other hosts that this rank made no progress, then end this process."""
    if membership.monitor is not None:
        reason = "it made no progress (watchdog_s); its own log names the last step"
        membership.monitor.report_failure(reason, exit_code)
    os._exit(exit_code)


def _log_start(config: RunConfig, world: World, device: torch.device) -> None:
    """Log what is about to run, and on what."""
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


def _origin(command_line: Sequence[str]) -> dict[str, Any]:
    """Return how a run was started: command, package versions, the commit where there is one."""
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
