"""From a Hugging Face folder to a recipe that trains it further.

The recipe folder is self-contained: recipe.json and its DeepSpeed JSONs as they were, but for the
model's shape and `init_from`, and the model itself in INIT, a Hugging Face folder with the
vocabulary that data must be prepared with.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from bert_ds.config.loading import find_recipe, load_run_config
from bert_ds.errors import CheckpointError, ConfigError
from bert_ds.files import folder_written_at_once, read_json_object, write_json
from bert_ds.model.families import PretrainingModel, family_of, family_of_folder
from bert_ds.model.family import ImportedModel
from bert_ds.model.hf_tokenizer import FolderTokenizer, read_tokenizer

INIT = "init"
"""The model's folder within the recipe's."""

_OF_THE_VOCABULARY = (
    "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.weight",
    "cls.predictions.bias",
)


@dataclass(frozen=True)
class ImportedRecipe:
    """What became of a Hugging Face folder.

    Attributes:
        vocabulary: file to prepare data with.
        tokenizer: how text is cut.
        missing: parameters of the heads that the folder lacks; they begin at random.
        ignored: tensors of the folder that have no place in the model.
        num_rows_cut: rows of the word embeddings that belonged to no piece.
    """

    vocabulary: Path
    tokenizer: FolderTokenizer
    missing: tuple[str, ...]
    ignored: tuple[str, ...]
    num_rows_cut: int


def import_as_recipe(folder: Path, recipe: Path, output_dir: Path) -> ImportedRecipe:
    """Write a recipe whose training begins with the weights of a Hugging Face folder.

    Args:
        folder: a `BertForPreTraining`, `BertForMaskedLM` or `BertModel`, or a task's model.
        recipe: phases, schedules and DeepSpeed settings come from it, the model's shape does not.
        output_dir: new or empty.

    Raises:
        CheckpointError: there is no BERT in `folder`, or `output_dir` holds something.
        ConfigError: the recipe is broken, or asks for what the model cannot (rows that are longer
            than its position embeddings).
        DataError: the vocabulary does not fit the weights.
    """
    if output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())):
        raise CheckpointError(f"{output_dir} exists and is not an empty folder; choose another")
    recipe = find_recipe(recipe)
    seed = load_run_config(recipe).seed
    tokenizer, imported = read_tokenizer(folder), family_of_folder(folder).import_hf(folder)
    num_cut = imported.config.vocab_size - len(tokenizer.pieces)
    model = _whole_model(imported, len(tokenizer.pieces), seed)
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
def _whole_model(imported: ImportedModel, num_pieces: int, seed: int) -> PretrainingModel:
    """The folder's weights; what it lacks of the heads as a run of that seed would begin.

    Rows of the vocabulary beyond its pieces go: they only round its size up.
    """
    vocab_size = min(imported.config.vocab_size, num_pieces)  # fewer rows are told by the export
    config = imported.config.model_copy(update={"vocab_size": vocab_size})
    family = family_of(config)
    model = family.build(config)
    family.init_weights(model, seed)
    parameters = dict(model.named_parameters())
    for name, tensor in imported.weights.items():
        is_of_vocabulary = name in _OF_THE_VOCABULARY
        parameters[name].copy_(tensor[:vocab_size] if is_of_vocabulary else tensor)
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
