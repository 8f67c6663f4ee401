"""Loads a trained model and its tokenizer from a run folder, and fills masks with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import BertWordPieceTokenizer

from bert_ds.batch import NO_PAIR_LABEL, PretrainingBatch
from bert_ds.checkpoint.content import Checkpoint, check_files, load_checkpoint, load_weights
from bert_ds.checkpoint.pointers import best as best_checkpoint
from bert_ds.checkpoint.store import newest_checkpoint
from bert_ds.errors import CheckpointError, DataError
from bert_ds.model.families import PretrainingModel, family_of, family_of_folder
from bert_ds.model.family import Family
from bert_ds.model.hf_tokenizer import read_tokenizer
from bert_ds.train.run_folder import RunFolder, open_run


@dataclass(frozen=True)
class TrainedModel:
    """A run's model with the weights of one of its checkpoints."""

    model: PretrainingModel
    """The model, on the CPU, in evaluation mode."""
    folder: RunFolder
    """The run folder."""
    checkpoint: Checkpoint
    """The checkpoint of the weights, without the optimizer's tensors."""
    lowercase: bool
    """Whether text is lowercased before it is cut into pieces."""
    strip_accents: bool
    """Whether accents are stripped before text is cut into pieces."""

    @property
    def family(self) -> Family:
        """The family of the network, which exports it."""
        return family_of(self.model.config)

    def tokenizer(self) -> BertWordPieceTokenizer:
        """Return the tokenizer that the training data was made with."""
        return BertWordPieceTokenizer(
            str(self.folder.vocabulary), lowercase=self.lowercase, strip_accents=self.strip_accents
        )


@dataclass(frozen=True)
class UsableModel:
    """A model and its tokenizer, which together take a text."""

    model: PretrainingModel
    """The model, on the CPU, in evaluation mode."""
    tokenizer: BertWordPieceTokenizer
    """The tokenizer of its training data."""


@dataclass(frozen=True)
class Guess:
    """One piece that could stand in a masked place."""

    piece: str
    """The piece of the vocabulary."""
    probability: float
    """The model's probability for it."""


def load_trained(path: Path, which: str = "latest") -> TrainedModel:
    """Load a checkpoint of a run.

    Args:
        path: the run folder.
        which: `latest`, the newest whole checkpoint, or `best`.

    Raises:
        CheckpointError: the folder holds no run, or the run has no such checkpoint.
    """
    folder, config = open_run(path)
    if which == "best":
        found = _best_of(folder)
    else:
        newest, _ = newest_checkpoint(folder.checkpoints, with_optimizer=False)
        if newest is None:
            raise CheckpointError(f"{path} has no checkpoint yet; wait until the run writes one")
        found = newest
    model = family_of(config.model).build(config.model)
    checkpoint = load_checkpoint(found, with_optimizer=False)
    load_weights(model, checkpoint)
    settings = folder.read_vocabulary_settings()
    return TrainedModel(
        model.eval(), folder, checkpoint, settings["lowercase"], settings["strip_accents"]
    )


def _best_of(folder: RunFolder) -> Path:
    found = best_checkpoint(folder.checkpoints)
    if found is None:
        raise CheckpointError(
            f"{folder.path} has no best checkpoint; runs keep one with evaluation.every_steps and "
            "checkpoint.keep_best=true"
        )
    check_files(found, with_optimizer=False)
    return found


@torch.no_grad()
def load_usable(path: Path, which: str = "latest") -> UsableModel:
    """Load the model of a run or of a Hugging Face folder, with its tokenizer.

    Args:
        path: the folder.
        which: the checkpoint of a run, `latest` or `best`.

    Raises:
        CheckpointError: the folder is neither, or has no masked language model's head.
    """
    if not (path / "model.safetensors").exists() and not (path / "pytorch_model.bin").exists():
        trained = load_trained(path, which)
        return UsableModel(trained.model, trained.tokenizer())
    imported, cut = family_of_folder(path).import_hf(path), read_tokenizer(path)
    model = family_of(imported.config).build(imported.config)
    scorers = set(model.parameters_of_heads({"vocabulary"}))
    missing = [name for name in imported.missing if name in scorers]
    if missing:
        raise CheckpointError(
            f"{path} has no masked language model's head ({missing[0]} is missing); take a folder "
            "of BertForPreTraining or BertForMaskedLM"
        )
    model.load_state_dict(imported.weights, strict=False)  # the pooler may be missing
    tokenizer = BertWordPieceTokenizer(
        {piece: index for index, piece in enumerate(cut.pieces)},
        lowercase=cut.lowercase,
        strip_accents=cut.strip_accents,
    )
    return UsableModel(model.eval(), tokenizer)


@torch.no_grad()
def fill_mask(usable: UsableModel, text: str, top_k: int) -> list[list[Guess]]:
    """Return the most likely pieces for every [MASK] in a text.

    Args:
        usable: model and tokenizer.
        text: a text with one or more `[MASK]`.
        top_k: guesses per masked place.

    Returns:
        One list per masked place, best guess first.

    Raises:
        DataError: the text has no [MASK], or it is longer than the model allows.
    """
    tokenizer = usable.tokenizer
    encoded = tokenizer.encode(text)
    mask_id = tokenizer.token_to_id("[MASK]")
    positions = [index for index, piece in enumerate(encoded.ids) if piece == mask_id]
    if not positions:
        raise DataError(f"the text has no [MASK] to fill: '{text}'")
    longest = usable.model.config.max_position_embeddings
    if len(encoded.ids) > longest:
        raise DataError(f"the text has {len(encoded.ids)} pieces, the model takes {longest}")
    input_ids = torch.tensor([encoded.ids])
    batch = PretrainingBatch(
        input_ids=input_ids,
        token_type_ids=torch.zeros_like(input_ids),
        attention_mask=torch.ones_like(input_ids, dtype=torch.bool),
        masked_lm_positions=torch.tensor(positions),
        masked_lm_ids=input_ids[0, positions],
        next_sentence_label=torch.tensor([NO_PAIR_LABEL]),
    )
    states = usable.model.encode(batch).tokens[positions]
    scores = usable.model.score_vocabulary(states)[:, : usable.model.vocab_size]
    best = scores.float().softmax(dim=-1).topk(min(top_k, scores.shape[-1]))
    return [
        [Guess(tokenizer.id_to_token(piece), p) for piece, p in zip(ids, values, strict=True)]
        for ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
