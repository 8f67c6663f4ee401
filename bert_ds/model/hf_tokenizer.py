"""Write a Hugging Face folder's tokenizer, so that `AutoTokenizer` loads it, and read one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import BertWordPieceTokenizer

from bert_ds.errors import CheckpointError, DataError
from bert_ds.files import read_json_object, write_json

SPECIAL_TOKENS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}

_VOCAB_ROUNDING = 64
"""The embedding may have rows without a piece up to the next multiple of this."""


class FolderTokenizer(NamedTuple):
    """How the text of a Hugging Face BERT is cut."""

    pieces: tuple[str, ...]
    """The vocabulary in the order of its ids."""
    lowercase: bool
    """Whether text is lowercased."""
    strip_accents: bool | None
    """Whether accents are stripped; None strips them exactly where text is lowercased."""


def write_tokenizer(
    folder: Path,
    vocabulary: dict[str, int],
    lowercase: bool,
    strip_accents: bool | None,
    model_max_length: int,
) -> None:
    """Write tokenizer.json, tokenizer_config.json and special_tokens_map.json.

    Args:
        folder: the folder, which exists.
        vocabulary: ids by piece.
        lowercase: whether text is lowercased.
        strip_accents: whether accents are stripped; None strips them where text is lowercased.
        model_max_length: tokens of the longest row.
    """
    tokenizer = BertWordPieceTokenizer(vocabulary, lowercase=lowercase, strip_accents=strip_accents)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "special_tokens_map.json", SPECIAL_TOKENS)
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": lowercase,
            "strip_accents": strip_accents,
            "tokenize_chinese_chars": True,
            "model_max_length": model_max_length,
            **SPECIAL_TOKENS,
        },
    )


def read_tokenizer(folder: Path) -> FolderTokenizer:
    """Read vocab.txt, tokenizer.json and tokenizer_config.json, as far as they are there.

    The pieces are those of vocab.txt or, without it, of tokenizer.json. The case is that of
    tokenizer_config.json, else of tokenizer.json, else lower.

    Raises:
        CheckpointError: neither file holds a WordPiece vocabulary.
    """
    whole = _object_of(folder / "tokenizer.json")
    normalizer = whole.get("normalizer") or {}
    settings = _object_of(folder / "tokenizer_config.json")
    lowercase = settings.get("do_lower_case", normalizer.get("lowercase", True))
    strip_accents = settings.get("strip_accents", normalizer.get("strip_accents"))
    return FolderTokenizer(_pieces_of(folder, whole), bool(lowercase), strip_accents)


def _object_of(path: Path) -> dict[str, Any]:
    return read_json_object(path, CheckpointError) if path.exists() else {}


def _pieces_of(folder: Path, whole: dict[str, Any]) -> tuple[str, ...]:
    path = folder / "vocab.txt"
    if path.exists():
        return tuple(_split_pieces(_read_text(path)))
    model = whole.get("model", {})
    if model.get("type") != "WordPiece":
        raise CheckpointError(
            f"{folder} has no vocab.txt, nor a tokenizer.json with a WordPiece vocabulary, and its "
            "weights mean nothing without; add the vocab.txt that it was trained with."
        )
    ids: dict[str, int] = model["vocab"]
    pieces = sorted(ids, key=lambda piece: ids[piece])
    if [ids[piece] for piece in pieces] != list(range(len(pieces))):
        raise CheckpointError(f"{folder / 'tokenizer.json'} has gaps in the ids of its vocabulary.")
    return tuple(pieces)


def _read_text(vocabulary_file: Path) -> str:
    try:
        return vocabulary_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise DataError(f"cannot read the vocabulary {vocabulary_file}: {err}") from err


def _split_pieces(text: str) -> list[str]:
    # Not splitlines(): published vocabularies hold pieces that it takes for line ends (U+2028).
    return text.removesuffix("\n").split("\n")


def read_vocabulary(vocabulary_file: Path, vocab_size: int) -> dict[str, int]:
    """Read a vocabulary as ids by piece, checked against the rows of the word embeddings.

    Args:
        vocabulary_file: a piece a line, UTF-8.
        vocab_size: rows of the word embeddings.

    Raises:
        DataError: it cannot be read, holds a piece twice, lacks a special piece, or does not fit.
    """
    pieces = _split_pieces(_read_text(vocabulary_file))
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    if len(vocabulary) != len(pieces):
        repeated = next(piece for index, piece in enumerate(pieces) if vocabulary[piece] != index)
        raise DataError(f"{vocabulary_file} holds the piece '{repeated}' twice; remove one.")
    absent = [token for token in SPECIAL_TOKENS.values() if token not in vocabulary]
    if absent:
        raise DataError(f"{vocabulary_file} lacks the special pieces {', '.join(absent)}.")
    if not len(pieces) <= vocab_size < len(pieces) + _VOCAB_ROUNDING:
        raise DataError(
            f"{vocabulary_file} has {len(pieces)} pieces and the model {vocab_size} rows; there "
            f"must be a row for each piece, and fewer than {_VOCAB_ROUNDING} over. Use the "
            "vocabulary that the model was trained with."
        )
    return vocabulary
