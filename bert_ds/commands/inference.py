"""`bert-ds evaluate`, `fill-mask`, `export-hf`, `import-hf`: weights are used, or come and go."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path

from bert_ds.config.recipe import RunConfig
from bert_ds.distributed.communicator import Communicator, init_process_group, shutdown
from bert_ds.distributed.world import World
from bert_ds.errors import ConfigError, DataError
from bert_ds.inference import fill_mask as guess_masks
from bert_ds.inference import load_trained, load_usable
from bert_ds.model.bert.hf import EXPORTED_FILES, export_pretraining
from bert_ds.train import setup
from bert_ds.train.evaluate import evaluate_held_out
from bert_ds.train.import_recipe import import_as_recipe
from bert_ds.train.run_folder import open_run


def evaluate(arguments: argparse.Namespace, world: World) -> None:
    """Print the held-out result as JSON; ranks share the work."""
    trained, (_, config) = (
        load_trained(arguments.run, arguments.checkpoint),
        open_run(arguments.run),
    )
    device = setup.select_device(world)
    init_process_group(world, device)
    comm = Communicator(world, device)
    vocabulary = trained.checkpoint.state.vocabulary_sha256
    share = comm.among_equals(setup.files_seen(config, arguments.data))
    data = comm.together(lambda: _open_held_out(config, arguments.data, vocabulary, share))
    result = evaluate_held_out(config, data, trained.model.to(device), comm)
    if world.is_main:
        print(json.dumps(result.as_dict(), indent=2))
    shutdown()


def _open_held_out(
    config: RunConfig, data: Path, vocabulary_sha256: str, share: tuple[int, int]
) -> setup.PhaseData:
    """The last phase's dataset, which must be made with the vocabulary that the model knows."""
    opened = setup.open_phase_data(config, data, config.phases[-1:], *share)[0]
    if opened.manifest.vocabulary.sha256 != vocabulary_sha256:
        raise DataError(
            f"{opened.folder} is made with vocabulary {opened.manifest.vocabulary.sha256[:12]}, "
            f"the run was trained with {vocabulary_sha256[:12]}; give the data of the run's "
            "vocabulary"
        )
    if not opened.manifest.totals("valid").rows:
        raise DataError(
            f"{opened.folder} has no held-out rows; prepare it with --valid-fraction above 0"
        )
    return opened


def fill_mask(arguments: argparse.Namespace) -> None:
    """Print the best guesses for every [MASK], a line each."""
    if arguments.top_k < 1:
        raise ConfigError(f"--top-k must be at least 1, it is {arguments.top_k}")
    places = guess_masks(
        load_usable(arguments.run, arguments.checkpoint), arguments.text, arguments.top_k
    )
    for number, guesses in enumerate(places, start=1):
        for guess in guesses:
            print(f"[MASK] {number}  {guess.probability:.4f}  {guess.piece}")


def export_hf(arguments: argparse.Namespace) -> None:
    """Write the Hugging Face folder and note it in the run's summary."""
    trained = load_trained(arguments.run, arguments.checkpoint)
    name = trained.checkpoint.path.name
    architecture = arguments.architecture
    origin = {
        "export": str(arguments.output_dir),
        "exported_checkpoint": name,
        "exported_as": architecture,
    }
    is_whole = all((arguments.output_dir / file).is_file() for file in EXPORTED_FILES)
    if is_whole and origin.items() <= trained.folder.read_summary().items():
        print(f"{arguments.output_dir} is up to date with {name}")
        return
    export_pretraining(
        trained.model,
        vocabulary_file=trained.folder.vocabulary,
        lowercase=trained.lowercase,
        strip_accents=trained.strip_accents,
        output_dir=arguments.output_dir,
        architecture=architecture,
    )
    trained.folder.update_summary(**origin)
    print(f"exported {name} to {arguments.output_dir} as {architecture}")


def import_hf(arguments: argparse.Namespace) -> None:
    """Write the recipe, and say what was found and what comes next."""
    imported = import_as_recipe(arguments.model, arguments.recipe, arguments.output_dir)
    for what, names in (
        ("not there, begin at random", imported.missing),
        ("not used", imported.ignored),
    ):
        if names:
            print(f"{what}: {', '.join(names)}")
    if imported.num_rows_cut:
        print(
            f"{imported.num_rows_cut} rows of the vocabulary belong to no piece and were left out"
        )
    print(f"wrote the recipe {arguments.output_dir}; next:")
    words = ["bert-prep", "shards", "--vocab", str(imported.vocabulary)]
    tokenizer = imported.tokenizer
    words += [] if tokenizer.lowercase else ["--cased"]
    if tokenizer.strip_accents not in (None, tokenizer.lowercase):
        words.append("--strip-accents" if tokenizer.strip_accents else "--no-strip-accents")
    print(f"  {shlex.join(words)} --input TEXT --output-dir DATA --sequence-length ...")
    recipe = shlex.quote(str(arguments.output_dir))
    print(f"  bert-ds pretrain --recipe {recipe} --data DATA --output-dir RUN")
