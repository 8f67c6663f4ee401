"""A whole pretraining run within ranks that a test has started."""

from __future__ import annotations

from pathlib import Path

import torch

from bert_ds.config.loading import load_run_config
from bert_ds.distributed.communicator import Communicator
from bert_ds.distributed.world import World
from bert_ds.engine import import_deepspeed
from bert_ds.train import setup
from bert_ds.train.pretrain import run_pretraining
from bert_ds.train.run import Run
from bert_ds.train.run_folder import RunFolder
from bert_ds.train.stop import StopFlag
from bert_ds.train.watchdog import Watchdog


def pretrain_in_rank(
    world: World,
    recipe: Path,
    data: Path,
    output_dir: Path,
    overrides: list[str],
    resume: str = "auto",
) -> None:
    """What `bert-ds pretrain` does once the ranks have met."""
    config = load_run_config(recipe, overrides)
    device = torch.device("cpu")
    comm = Communicator(world, device)
    folder = RunFolder(output_dir)
    opened = comm.run_on_all_ranks(lambda: setup.open_phase_data(config, data))
    if world.is_main:
        folder.claim()
    watchdog = Watchdog(world.name, config.watchdog_s)
    run = Run(config, world, comm, device, folder, opened, StopFlag(), watchdog, {})
    run_pretraining(run, resume)
    folder.release()


def pretrain_with_fp16_on_cpu(world: World, *arguments: object) -> None:
    """The same where DeepSpeed takes this CPU for one with fp16, which it otherwise refuses."""
    accelerator = import_deepspeed().accelerator.get_accelerator()
    accelerator.is_fp16_supported = lambda: True
    pretrain_in_rank(world, *arguments)
