"""A trained model and its tokenizer out of a run folder, to be used, exported or evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import BertWordPieceTokenizer

from bert_ds.batch import NO_PAIR_LABEL, PretrainingBatch
from bert_ds.checkpoint.content import Checkpoint, check_files, load_checkpoint, load_weights
from bert_ds.checkpoint.store import newest_checkpoint
from bert_ds.errors import CheckpointError, DataError
from bert_ds.model.families import PretrainingModel, family_of, family_of_folder
from bert_ds.model.family import Family
from bert_ds.model.hf_tokenizer import read_tokenizer
from bert_ds.train.run_folder import RunFolder, open_run


@dataclass(frozen=True)
class TrainedModel:
    """The newest weights of a run.

    Attributes:
        model: on the CPU, in evaluation mode.
        folder: the run.
        checkpoint: what the weights came from; without the optimizer's tensors.
        lowercase, strip_accents: how text is normalised before it is cut into pieces.
    """

    model: PretrainingModel
    folder: RunFolder
    checkpoint: Checkpoint
    lowercase: bool
    strip_accents: bool

    @property
    def family(self) -> Family:
        """The family of the network, which exports it."""
        return family_of(self.model.config)

    def tokenizer(self) -> BertWordPieceTokenizer:
        """The tokenizer that the training data was made with."""
        return BertWordPieceTokenizer(
            str(self.folder.vocabulary), lowercase=self.lowercase, strip_accents=self.strip_accents
        )


@dataclass(frozen=True)
class UsableModel:
    """What a text is given to.

    Attributes:
        model: on the CPU, in evaluation mode.
        tokenizer: that of its training data.
    """

    model: PretrainingModel
    tokenizer: BertWordPieceTokenizer


@dataclass(frozen=True)
class Guess:
    """One piece that could stand in a masked place, with the model's probability for it."""

    piece: str
    probability: float


def load_trained(path: Path, which: str = "latest") -> TrainedModel:
    """Load a checkpoint of a run.

    Args:
        path: the run folder.
        which: `latest`, the newest whole one, or `best`.

    Raises:
        CheckpointError: no run there, or it has no such checkpoint.
    """
    folder, config = open_run(path)
    if which == "best":
        found = _best_of(folder)
    else:
        newest, _ = newest_checkpoint(folder.checkpoints, with_optimizer=False)
        if newest is None:
            raise CheckpointError(f"{path} has no checkpoint yet; let the run come to its first")
        found = newest
    model = family_of(config.model).build(config.model)
    checkpoint = load_checkpoint(found, with_optimizer=False)
    load_weights(model, checkpoint)
    settings = folder.read_vocabulary_settings()
    return TrainedModel(
        model.eval(), folder, checkpoint, settings["lowercase"], settings["strip_accents"]
    )


def _best_of(folder: RunFolder) -> Path:
    pointer = folder.checkpoints / "best"
    if not pointer.is_file():
        raise CheckpointError(
            f"{folder.path} has no best checkpoint; runs keep one with evaluation.every_steps and "
            "checkpoint.keep_best=true"
        )
    found = folder.checkpoints / pointer.read_text().strip()
    check_files(found, with_optimizer=False)
    return found


@torch.no_grad()
def load_usable(path: Path, which: str = "latest") -> UsableModel:
    """Load weights of a run, `latest` or `best`, or those of a Hugging Face folder.

    Raises:
        CheckpointError: there is neither there, or a folder without a masked language model's head.
    """
    if not (path / "model.safetensors").exists() and not (path / "pytorch_model.bin").exists():
        trained = load_trained(path, which)
        return UsableModel(trained.model, trained.tokenizer())
    imported, cut = family_of_folder(path).import_hf(path), read_tokenizer(path)
    missing = [name for name in imported.missing if name.startswith("cls.predictions.")]
    if missing:
        raise CheckpointError(
            f"{path} has no masked language model's head ({missing[0]} is not there); take a "
            "folder of PretrainingModel or BertForMaskedLM"
        )
    model = family_of(imported.config).build(imported.config)
    model.load_state_dict(imported.weights, strict=False)  # without a pooler it may be
    tokenizer = BertWordPieceTokenizer(
        {piece: index for index, piece in enumerate(cut.pieces)},
        lowercase=cut.lowercase,
        strip_accents=cut.strip_accents,
    )
    return UsableModel(model.eval(), tokenizer)


@torch.no_grad()
def fill_mask(usable: UsableModel, text: str, top_k: int) -> list[list[Guess]]:
    """The likeliest pieces for every [MASK] in a text.

    Args:
        usable: model and tokenizer.
        text: one or more `[MASK]` in it.
        top_k: guesses a place.

    Returns:
        A list a masked place, best guess first.

    Raises:
        DataError: there is no [MASK] in the text, or it is longer than the model takes.
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
