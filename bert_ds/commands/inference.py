"""`bert-ds evaluate`, `fill-mask`, `export-hf`, `import-hf`: use weights, or convert them."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from bert_ds.commands.arguments import (
    add_checkpoint,
    add_data,
    add_run,
    check_at_least_1,
)
from bert_ds.errors import DataError

if TYPE_CHECKING:
    from bert_ds.commands.arguments import Commands
    from bert_ds.config.recipe import RunConfig
    from bert_ds.distributed.world import World
    from bert_ds.train.setup import PhaseData


def add_parser(commands: Commands) -> None:
    """Register the four commands."""
    for add_command in (_add_evaluate, _add_fill_mask, _add_export, _add_import):
        add_command(commands)


def _add_evaluate(commands: Commands) -> None:
    parser = commands.add_parser(
        "evaluate", help="held-out loss and accuracies of a run's weights, as JSON"
    )
    add_run(parser)
    add_checkpoint(parser)
    add_data(parser)
    parser.set_defaults(execute=evaluate)


def evaluate(arguments: argparse.Namespace, world: World) -> None:
    """Print the held-out result as JSON; ranks share the work."""
    from bert_ds.distributed.communicator import Communicator, init_process_group, shutdown
    from bert_ds.inference import load_trained
    from bert_ds.train import setup
    from bert_ds.train.evaluate import evaluate_held_out
    from bert_ds.train.run_folder import open_run

    trained = load_trained(arguments.run, arguments.checkpoint)
    _, config = open_run(arguments.run)
    device = setup.select_device(world)
    init_process_group(world, device)
    comm = Communicator(world, device)
    vocabulary = trained.checkpoint.state.vocabulary_sha256
    share = comm.among_equals(setup.files_seen(config, arguments.data))
    data = comm.run_on_all_ranks(lambda: _open_held_out(config, arguments.data, vocabulary, share))
    result = evaluate_held_out(config, data, trained.model.to(device), comm)
    if world.is_main:
        print(json.dumps(result.as_dict(), indent=2))
    shutdown()


def _open_held_out(
    config: RunConfig, data: Path, vocabulary_sha256: str, share: tuple[int, int]
) -> PhaseData:
    """Open the last phase's dataset, which must be made with the vocabulary of the model."""
    from bert_ds.train.setup import open_phase_data

    opened = open_phase_data(config, data, config.phases[-1:], *share)[0]
    if opened.manifest.vocabulary.sha256 != vocabulary_sha256:
        raise DataError(
            f"{opened.folder} is made with vocabulary {opened.manifest.vocabulary.sha256[:12]}, "
            f"the run was trained with {vocabulary_sha256[:12]}; give the data of the run's "
            "vocabulary"
        )
    if not opened.manifest.totals("valid").rows:
        raise DataError(
            f"{opened.folder} has no held-out sequences; prepare it with --valid-fraction above 0"
        )
    return opened


def _add_fill_mask(commands: Commands) -> None:
    parser = commands.add_parser(
        "fill-mask",
        help="predict the tokens at the [MASK]s of a text",
        epilog="Example: bert-ds fill-mask --run RUN 'The capital of France is [MASK].'",
    )
    add_run(parser, "a run folder of pretrain, or a Hugging Face folder")
    add_checkpoint(parser)
    parser.add_argument("text", help="text with one or more [MASK]")
    parser.add_argument("--top-k", type=int, default=5, metavar="K", help="predictions (default 5)")
    parser.set_defaults(execute=fill_mask)


def fill_mask(arguments: argparse.Namespace, world: World) -> None:
    """Print the best guesses for every [MASK], a line each."""
    from bert_ds.inference import fill_mask as guess_masks
    from bert_ds.inference import load_usable

    check_at_least_1("--top-k", arguments.top_k)
    model = load_usable(arguments.run, arguments.checkpoint)
    places = guess_masks(model, arguments.text, arguments.top_k)
    for number, guesses in enumerate(places, start=1):
        for guess in guesses:
            print(f"[MASK] {number}  {guess.probability:.4f}  {guess.piece}")


def _add_export(commands: Commands) -> None:
    parser = commands.add_parser(
        "export-hf",
        help="write a run's weights as a Hugging Face folder",
        epilog="Example: bert-ds export-hf --run RUN --output-dir RUN/hf",
    )
    add_run(parser)
    add_checkpoint(parser)
    parser.add_argument("--output-dir", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--architecture", default="BertForPreTraining",
        choices=["BertForPreTraining", "BertForMaskedLM", "BertModel"],
        help="Hugging Face's class, which decides the heads that are written (default "
        "BertForPreTraining)",
    )  # fmt: skip
    parser.set_defaults(execute=export_hf)


def export_hf(arguments: argparse.Namespace, world: World) -> None:
    """Write the Hugging Face folder and note it in the run's summary."""
    from bert_ds.inference import load_trained

    trained = load_trained(arguments.run, arguments.checkpoint)
    name = trained.checkpoint.path.name
    architecture = arguments.architecture
    origin = {
        "export": str(arguments.output_dir),
        "exported_checkpoint": name,
        "exported_as": architecture,
    }
    files = [arguments.output_dir / name for name in trained.family.exported_files]
    is_whole = all(file.is_file() for file in files)
    if is_whole and origin.items() <= trained.folder.read_summary().items():
        print(f"{arguments.output_dir} is up to date with {name}")
        return
    trained.family.export_hf(
        trained.model,
        vocabulary_file=trained.folder.vocabulary,
        lowercase=trained.lowercase,
        strip_accents=trained.strip_accents,
        output_dir=arguments.output_dir,
        architecture=architecture,
    )
    trained.folder.update_summary(**origin)
    print(f"exported {name} to {arguments.output_dir} as {architecture}")


def _add_import(commands: Commands) -> None:
    parser = commands.add_parser(
        "import-hf",
        help="write a recipe that trains a Hugging Face BERT further",
        description="Write a recipe folder that holds a Hugging Face BERT and trains it further: "
        "phases and DeepSpeed settings are those of --recipe, shape, weights and vocabulary are "
        "the model's.",
    )
    parser.add_argument(
        "--model", type=Path, required=True, metavar="DIR",
        help="a Hugging Face folder: BertForPreTraining, BertForMaskedLM or BertModel",
    )  # fmt: skip
    parser.add_argument(
        "--recipe", type=Path, required=True, metavar="RECIPE",
        help="a folder, or the name of a shipped recipe such as bert-base",
    )  # fmt: skip
    parser.add_argument("--output-dir", type=Path, required=True, metavar="DIR")
    parser.set_defaults(execute=import_hf)


def import_hf(arguments: argparse.Namespace, world: World) -> None:
    """Write the recipe, and print what was found and the commands to run next."""
    from bert_ds.train.import_recipe import import_as_recipe

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
