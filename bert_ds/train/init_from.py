"""Checks and loads the weights of a Hugging Face folder that training begins with."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from bert_ds.config.recipe import RunConfig
from bert_ds.errors import ConfigError, DataError
from bert_ds.model.families import PretrainingModel, family_of, family_of_folder
from data_prep.contract.manifest import VOCABULARY_NAME, Manifest
from data_prep.contract.storage import sha256_file

log = logging.getLogger(__name__)

# Settings that may differ from the folder's: they belong to training, not to the weights.
_FREE_FIELDS = {"hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range"}


def check_init_from(config: RunConfig, data: Path, manifest: Manifest) -> None:
    """Refuse weights that do not belong to the recipe's model or to the data, before training.

    Args:
        config: settings of the run; without `init_from` there is nothing to check.
        data: a dataset folder.
        manifest: the dataset's manifest.

    Raises:
        CheckpointError: there is no BERT in the folder.
        ConfigError: there is no such folder, or it has another shape than the recipe's model.
        DataError: the dataset was made with another vocabulary.
    """
    folder = config.init_from
    if folder is None:
        return
    if not folder.is_dir():
        raise ConfigError(
            f"init_from {folder}: no such folder; name a Hugging Face folder with config.json and "
            "model.safetensors"
        )
    theirs = family_of_folder(folder).read_hf_config(folder).model_dump(exclude=_FREE_FIELDS)
    ours = config.model.model_dump(exclude=_FREE_FIELDS)
    differing = [
        f"{key} is {theirs[key]!r} there and {ours[key]!r} in the recipe"
        for key in ours
        if ours[key] != theirs[key]
    ]
    if differing:
        raise ConfigError(
            f"init_from {folder} is another model than the recipe's: {'; '.join(differing)}. Set "
            "model.* to the folder's values; bert-ds import-hf writes such a recipe"
        )
    vocabulary = folder / VOCABULARY_NAME
    if not vocabulary.is_file():
        log.warning("%s has no vocab.txt to compare with the vocabulary of %s", folder, data)
        return
    if sha256_file(vocabulary) != manifest.vocabulary.sha256:
        raise DataError(
            f"{data} was made with another vocabulary than {vocabulary}: the weights would mean "
            "other pieces. Prepare the data with --vocab of that file"
        )


@torch.no_grad()
def load_init_from(model: PretrainingModel, folder: Path, is_main: bool = True) -> None:
    """Load the weights of a Hugging Face folder into a model; what the folder lacks is kept.

    Args:
        model: a model of the folder's shape, with initial weights.
        folder: a Hugging Face folder, checked by `check_init_from`.
        is_main: whether this rank logs what was found.

    Raises:
        CheckpointError: the weights cannot be read, or the encoder is not whole.
    """
    imported = family_of(model.config).import_hf(folder)
    parameters = dict(model.named_parameters())
    for name, tensor in imported.weights.items():
        parameters[name].copy_(tensor)
    if is_main:
        log.info("weights of %s: %d tensors", folder, len(imported.weights))
        if imported.missing:
            log.warning("begin at random, not in %s: %s", folder, ", ".join(imported.missing))
        if imported.ignored:
            log.warning("not used of %s: %s", folder, ", ".join(imported.ignored))
