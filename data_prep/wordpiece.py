"""The vocabulary, and text to piece ids exactly as Hugging Face `tokenizers` gives them.

The reference is `BertWordPieceTokenizer` with `encode_special_tokens`: text that spells "[SEP]" is
text, never a separator. The fast path asks it for every distinct word once: the normaliser and the
pre-tokeniser of BERT look at one word at a time once words are separated by blanks. That is checked
against the reference when a tokeniser is made, and the plain path is taken, loudly, where it fails.

Source: Devlin et al. 2018; `tokenizers/implementations/bert_wordpiece.py`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tokenizers import BertWordPieceTokenizer

from data_prep.errors import DataError

logger = logging.getLogger(__name__)

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"
_CACHE_WORDS = 1 << 19  # about 150 MB; more words than a big English corpus uses often
_CACHED_CHARACTERS = 32  # longer words are hardly met twice
_CHECKED_TEXT = (
    "The U.S. Navy's cost-of-living (1,234.5%) rose -- na\u00efve caf\u00e9 Stra\u00dfe \u0130I "
    "e\u0301\u0301 \u4e2d\u6587 \ud55c\uad6d\uc5b4 \u0e01\u0e33 a\u00adb x\u200by \ufffd "
    "[SEP][MASK] ##ing \u03a3\u0391\u03a3 \u0345\u0301 \U0001f600 \ufb01"
)


@dataclass(frozen=True)
class Vocabulary:
    """Pieces in the order of their ids, and how text is normalised before it is cut.

    Attributes:
        pieces: the pieces.
        sha256: of the vocabulary file.
        lowercase: text is lowercased first.
        strip_accents: accents are removed first.
    """

    pieces: tuple[str, ...]
    sha256: str
    lowercase: bool = True
    strip_accents: bool = True

    def __len__(self) -> int:
        """Number of pieces."""
        return len(self.pieces)

    def id_of(self, piece: str) -> int:
        """The id of a piece that is there."""
        return self.pieces.index(piece)

    @property
    def special_ids(self) -> dict[str, int]:
        """The ids of the special pieces, by piece."""
        return {piece: self.id_of(piece) for piece in SPECIAL_PIECES}


def load_vocabulary(
    path: Path | str, lowercase: bool = True, strip_accents: bool | None = None
) -> Vocabulary:
    """Reads a `vocab.txt`: a piece a line, the special pieces at any line.

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
    """DataError where the pieces are no vocabulary."""
    missing = [piece for piece in SPECIAL_PIECES if piece not in pieces]
    if missing:
        raise DataError(
            f"vocabulary {path}: {len(pieces)} pieces without {' '.join(missing)}; BERT needs "
            f"{' '.join(SPECIAL_PIECES)}, each on a line of its own."
        )
    first: dict[str, int] = {}
    for number, piece in enumerate(pieces, start=1):
        if first.setdefault(piece, number) != number:
            raise DataError(
                f"vocabulary {path}: piece {piece!r} stands on line {first[piece]} and on line "
                f"{number}; a piece must have one id, remove one of the lines."
            )


class WordPieceTokenizer:
    """Text to piece ids, without [CLS] and [SEP].

    Args:
        vocabulary: the pieces and how text is normalised.
        is_fast: ask for each distinct word once; False takes the reference alone.
    """

    def __init__(self, vocabulary: Vocabulary, is_fast: bool = True) -> None:
        self._reference = reference_tokenizer(vocabulary)
        self._cache: dict[str, tuple[int, ...]] = {}
        self._is_fast = is_fast
        if is_fast and self._encode_fast([_CHECKED_TEXT]) != self.encode_plain([_CHECKED_TEXT]):
            logger.warning(
                "the word cache does not give the ids of tokenizers; it is left out (slower)"
            )
            self._is_fast = False

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The piece ids of each text.

        Args:
            texts: words separated by single blanks, as `data_prep.clean` leaves them.
        """
        return self._encode_fast(texts) if self._is_fast else self.encode_plain(texts)

    def encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        """The piece ids of each text, each given to the reference as a whole."""
        encodings = self._reference.encode_batch(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def _encode_fast(self, texts: Sequence[str]) -> list[list[int]]:
        """The piece ids of each text, word by word."""
        words = [text.split(" ") for text in texts]
        cache = self._cache
        if len(cache) > _CACHE_WORDS:
            cache.clear()
        new = [word for word in dict.fromkeys(chain.from_iterable(words)) if word not in cache]
        cache.update(zip(new, map(tuple, self.encode_plain(new)), strict=True))
        ids = [list(chain.from_iterable(map(cache.__getitem__, text))) for text in words]
        for word in new:
            if len(word) > _CACHED_CHARACTERS:
                del cache[word]
        return ids


def reference_tokenizer(vocabulary: Vocabulary) -> BertWordPieceTokenizer:
    """Hugging Face's own tokeniser for `vocabulary`; spelled special pieces are text."""
    tokenizer = BertWordPieceTokenizer(
        {piece: index for index, piece in enumerate(vocabulary.pieces)},
        lowercase=vocabulary.lowercase,
        strip_accents=vocabulary.strip_accents,
    )
    tokenizer._tokenizer.encode_special_tokens = True  # the wrapper has no property for it
    return tokenizer


def join_pieces(pieces: Iterable[str]) -> str:
    """Pieces as text for people: continuations are joined to what stands before them."""
    return " ".join(pieces).replace(" " + CONTINUATION, "")
