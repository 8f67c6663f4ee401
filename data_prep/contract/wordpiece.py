"""The vocabulary, and Hugging Face's own tokeniser for it, which is the reference for piece ids.

Source: Devlin et al. 2018; `tokenizers/implementations/bert_wordpiece.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import BertWordPieceTokenizer

from data_prep.contract.errors import DataError

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"


@dataclass(frozen=True)
class Vocabulary:
    """Pieces in the order of their ids, and how text is normalised before it is cut."""

    pieces: tuple[str, ...]
    """The pieces, each at its id."""
    sha256: str
    """Checksum of the vocabulary file, hexadecimal."""
    lowercase: bool = True
    """Whether text is lowercased before it is cut."""
    strip_accents: bool = True
    """Whether accents are removed before text is cut."""

    def __len__(self) -> int:
        """Return the number of pieces."""
        return len(self.pieces)

    def id_of(self, piece: str) -> int:
        """Return the id of a piece that is there."""
        return self.pieces.index(piece)

    @property
    def special_ids(self) -> dict[str, int]:
        """The ids of the special pieces, by piece."""
        return {piece: self.id_of(piece) for piece in SPECIAL_PIECES}


def load_vocabulary(
    path: Path | str, lowercase: bool = True, strip_accents: bool | None = None
) -> Vocabulary:
    """Read a `vocab.txt`: a piece a line, the special pieces at any line.

    Args:
        path: the file.
        lowercase: whether text is lowercased.
        strip_accents: whether accents are removed; None means as `lowercase`.

    Raises:
        DataError: it cannot be read, is not UTF-8, lacks a special piece, or repeats a piece.
    """
    try:
        content = Path(path).read_bytes()
        pieces = [line.rstrip() or line for line in content.decode("utf-8").split("\n")]
    except OSError as err:
        raise DataError(f"vocabulary {path}: cannot be read ({err.strerror}).") from err
    except UnicodeDecodeError as err:
        raise DataError(f"vocabulary {path}: not UTF-8 at byte {err.start}.") from err
    if pieces[-1] == "":
        pieces.pop()
    _check_pieces(str(path), pieces)
    accents = lowercase if strip_accents is None else strip_accents
    return Vocabulary(tuple(pieces), hashlib.sha256(content).hexdigest(), lowercase, accents)


def _check_pieces(path: str, pieces: Sequence[str]) -> None:
    """Raise DataError where the pieces are no vocabulary."""
    missing = [piece for piece in SPECIAL_PIECES if piece not in pieces]
    if missing:
        raise DataError(
            f"vocabulary {path}: {len(pieces)} pieces without {' '.join(missing)}; BERT needs "
            f"{' '.join(SPECIAL_PIECES)}, each on a line of its own."
        )
    if len(pieces) <= len(SPECIAL_PIECES):
        raise DataError(f"vocabulary {path}: no piece of text besides {' '.join(SPECIAL_PIECES)}.")
    first: dict[str, int] = {}
    for number, piece in enumerate(pieces, start=1):
        if first.setdefault(piece, number) != number:
            raise DataError(
                f"vocabulary {path}: piece {piece!r} stands on line {first[piece]} and on line "
                f"{number}; a piece must have one id, remove one of the lines."
            )


def reference_tokenizer(vocabulary: Vocabulary) -> BertWordPieceTokenizer:
    """Return Hugging Face's own tokeniser for `vocabulary`; spelled special pieces are text."""
    tokenizer = BertWordPieceTokenizer(
        {piece: index for index, piece in enumerate(vocabulary.pieces)},
        lowercase=vocabulary.lowercase,
        strip_accents=vocabulary.strip_accents,
    )
    tokenizer._tokenizer.encode_special_tokens = True  # the wrapper has no property for it
    return tokenizer


def join_pieces(pieces: Iterable[str]) -> str:
    """Return pieces as text for people: continuations are joined to what stands before them."""
    return " ".join(pieces).replace(" " + CONTINUATION, "")
