"""Turns a Hugging Face folder into a recipe that trains its model further.

The recipe folder is self-contained. It holds recipe.json and the DeepSpeed JSONs of another recipe,
in which only the model's shape and `init_from` change, and the model itself in INIT: a Hugging Face
folder with the vocabulary that data must be prepared with.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from bert_ds.config.loading import find_recipe, load_run_config
from bert_ds.config.model import ModelConfig
from bert_ds.errors import CheckpointError, ConfigError
from bert_ds.files import folder_written_at_once, read_json_object, write_json
from bert_ds.model.families import PretrainingModel, family_of, family_of_folder
from bert_ds.model.hf_tokenizer import FolderTokenizer, read_tokenizer

INIT = "init"
"""The model's folder within the recipe's."""


@dataclass(frozen=True)
class ImportedRecipe:
    """What was found in a Hugging Face folder, and what data must be prepared with."""

    vocabulary: Path
    """The vocabulary file to prepare data with."""
    tokenizer: FolderTokenizer
    """How text is cut into pieces."""
    missing: tuple[str, ...]
    """Parameters of the heads that the folder lacks; they begin at random."""
    ignored: tuple[str, ...]
    """Tensors of the folder that have no place in the model."""
    num_rows_cut: int
    """Rows of the word embeddings that belonged to no piece and were left out."""


def import_as_recipe(folder: Path, recipe: Path, output_dir: Path) -> ImportedRecipe:
    """Write a recipe whose training begins with the weights of a Hugging Face folder.

    Args:
        folder: a `BertForPreTraining`, `BertForMaskedLM` or `BertModel`, or a task's model.
        recipe: the recipe that phases, schedules and DeepSpeed settings are taken from.
        output_dir: the folder to write, new or empty.

    Raises:
        CheckpointError: there is no BERT in `folder`, or `output_dir` holds something.
        ConfigError: the recipe is broken, or asks for what the model cannot do (rows that are
            longer than its position embeddings).
        DataError: the vocabulary does not fit the weights.
    """
    if output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())):
        raise CheckpointError(f"{output_dir} exists and is not an empty folder; choose another")
    recipe = find_recipe(recipe)
    seed = load_run_config(recipe).seed
    tokenizer, imported = read_tokenizer(folder), family_of_folder(folder).import_hf(folder)
    num_cut = imported.config.vocab_size - len(tokenizer.pieces)
    model = _whole_model(imported.config, imported.weights, len(tokenizer.pieces), seed)
    with folder_written_at_once(output_dir.absolute()) as new:
        vocabulary = new / "vocab.txt"
        vocabulary.write_text("".join(f"{piece}\n" for piece in tokenizer.pieces), "utf-8")
        family_of(model.config).export_hf(
            model,
            vocabulary_file=vocabulary,
            lowercase=tokenizer.lowercase,
            strip_accents=tokenizer.strip_accents,
            output_dir=new / INIT,
        )
        vocabulary.unlink()
        _write_recipe(recipe, model, new)
        load_run_config(new)
    return ImportedRecipe(
        vocabulary=output_dir / INIT / "vocab.txt",
        tokenizer=tokenizer,
        missing=imported.missing,
        ignored=imported.ignored,
        num_rows_cut=max(num_cut, 0),
    )


@torch.no_grad()
def _whole_model(
    config: ModelConfig, weights: Mapping[str, torch.Tensor], num_pieces: int, seed: int
) -> PretrainingModel:
    """Return the folder's model; heads that it lacks begin as in a run with that seed.

    Rows of the vocabulary beyond its pieces are cut off: they only round its size up. Where there
    are fewer rows than pieces, the export raises the error.

    Args:
        config: shape of the folder's model.
        weights: parameter name to tensor.
        num_pieces: pieces of its vocabulary.
        seed: of the recipe.
    """
    vocab_size = min(config.vocab_size, num_pieces)
    config = config.model_copy(update={"vocab_size": vocab_size})
    family = family_of(config)
    model = family.build(config)
    family.init_weights(model, seed)
    parameters = dict(model.named_parameters())
    for name, tensor in weights.items():
        # Shapes are equal, except that a parameter with a row a piece may have fewer rows now.
        parameters[name].copy_(tensor[: len(parameters[name])])
    return model


def _write_recipe(recipe: Path, model: PretrainingModel, folder: Path) -> None:
    tree = read_json_object(recipe / "recipe.json", ConfigError)
    for number, phase in enumerate(tree["phases"], start=1):
        if isinstance(phase["deepspeed"], str):
            target = folder / f"phase{number}.json"  # two files of one name may lie in two folders
            shutil.copyfile(recipe / phase["deepspeed"], target)
            phase["deepspeed"] = target.name
    tree.pop("recipe", None)  # its name is the folder's
    tree["model"] = json.loads(model.config.model_dump_json())
    tree["init_from"] = INIT
    write_json(folder / "recipe.json", tree)
