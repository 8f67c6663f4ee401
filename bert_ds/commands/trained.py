"""`bert-ds evaluate`, `fill-mask` and `export-hf`: what is done with a run's newest weights."""

from __future__ import annotations

import argparse
import json
import os

from bert_ds.dist import Communicator, init_process_group, shutdown, world_from_environment
from bert_ds.errors import ConfigError
from bert_ds.model.hf import export_pretraining
from bert_ds.train import setup
from bert_ds.train.pretrain import Run, evaluate_held_out
from bert_ds.train.run_folder import open_run
from bert_ds.train.stop import StopFlag
from bert_ds.trained import fill_mask as guess_masks
from bert_ds.trained import load_trained


def evaluate(arguments: argparse.Namespace) -> None:
    """Print the held-out result as JSON; ranks share the work."""
    _, config = open_run(arguments.run)
    trained = load_trained(arguments.run)
    world = world_from_environment(os.environ)
    device = setup.select_device(world)
    init_process_group(world, device)
    comm = Communicator(world, device)
    data = comm.together(lambda: setup.open_phase_data(config, arguments.data))
    run = Run(config, world, comm, device, trained.folder, data, StopFlag())
    result = evaluate_held_out(run, trained.model.to(device))
    if world.is_main:
        print(json.dumps(result.as_dict(), indent=2))
    shutdown()


def fill_mask(arguments: argparse.Namespace) -> None:
    """Print the best guesses for every [MASK], a line each."""
    if arguments.top_k < 1:
        raise ConfigError(f"--top-k must be at least 1, it is {arguments.top_k}")
    places = guess_masks(load_trained(arguments.run), arguments.text, arguments.top_k)
    for number, guesses in enumerate(places, start=1):
        for guess in guesses:
            print(f"[MASK] {number}  {guess.probability:.4f}  {guess.piece}")


def export_hf(arguments: argparse.Namespace) -> None:
    """Write the Hugging Face folder and note it in the run's summary."""
    trained = load_trained(arguments.run)
    origin = {"export": str(arguments.output_dir), "exported_checkpoint": trained.checkpoint.name}
    summary = trained.folder.read_summary()
    if arguments.output_dir.is_dir() and origin.items() <= summary.items():
        print(f"{arguments.output_dir} is up to date with {trained.checkpoint.name}")
        return
    export_pretraining(
        trained.model,
        vocabulary_file=trained.folder.vocabulary,
        lowercase=trained.lowercase,
        strip_accents=trained.strip_accents,
        output_dir=arguments.output_dir,
    )
    trained.folder.update_summary(**origin)
    print(f"exported {trained.checkpoint.name} to {arguments.output_dir}")
