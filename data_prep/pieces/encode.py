"""Documents to sentences of piece ids, exactly as Hugging Face `tokenizers` gives them.

There are two ways that give the same arrays. The plain one cleans the text, cuts it into sentences
and gives each to `BertWordPieceTokenizer` (`encode_special_tokens`: text that spells "[SEP]" is
text, never a separator). The fast one is `data_prep.pieces.scan`. It is held against the plain
one on a fixed text and on a sample of every part of the corpus; at the first difference, and for
text with characters whose normal form depends on their neighbours, the plain way is taken and the
log reports it.

Source: Devlin et al. 2018; `tokenizers/implementations/bert_wordpiece.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from data_prep.contract.compiled import compiled
from data_prep.contract.format import IntArray, UnsignedArray, token_dtype
from data_prep.contract.wordpiece import Vocabulary, reference_tokenizer
from data_prep.pieces import characters as ch
from data_prep.pieces.characters import (
    Characters,
    CharacterTable,
    documents_with_flag,
    has_flag,
    missing_page,
)
from data_prep.pieces.scan import (
    Scanned,
    ScanSettings,
    Tables,
    finish_hash,
    hash_piece,
    scan,
)
from data_prep.pieces.trie import make_trie
from data_prep.pieces.word_rules import make_rule_words
from data_prep.pieces.words import make_word_table, settle_unknown
from data_prep.text.readers import TextChunk
from data_prep.text.sentences import OWN_RULES, split_sentences

logger = logging.getLogger(__name__)

_SAMPLE_BYTES = 1 << 14
_CHECK_EVERY_BYTES = 64 << 20
_BATCH_SENTENCES = 512
_CHECKED_TEXT = (
    "The U.S. Navy's cost-of-living (1,234.5%) rose -- na\u00efve caf\u00e9 Stra\u00dfe \u0130I. "
    "e\u0301\u0301 \u4e2d\u6587\u3002\u300d\ud55c\uad6d\uc5b4 \u0e01\u0e33 a\u00adb x\u200by "
    "\ufffd!\n[SEP][MASK] ##ing \u03a3\u0391\u03a3 \u0345\u0301 \U0001f600 \ufb01. "
    "A\x00b\x1cc\x0cd\r\n\r\ne\n"
)


class Encoded(NamedTuple):
    """Some documents as piece ids."""

    num_sentences: IntArray
    """int64 [D], sentences of each document; 0 where it has no piece."""
    content: npt.NDArray[np.uint64]
    """uint64 [D], hash of its ids; equal texts have equal hashes."""
    sentence_lengths: npt.NDArray[np.uint32]
    """uint32 [S], tokens of each sentence, none of them 0."""
    ids: UnsignedArray
    """unsigned [T], piece ids of all sentences, end to end."""


class TextEncoder:
    """Documents to sentences of piece ids.

    Args:
        vocabulary: the pieces and how text is normalised.
        sentences: how text is cut into sentences.
        content_key: 64 bits, key of the content hashes.
        is_fast: False takes the plain way alone.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        sentences: str = "rules",
        content_key: int = 0,
        is_fast: bool = True,
    ) -> None:
        self._reference = reference_tokenizer(vocabulary)
        self._pieces = frozenset(vocabulary.pieces)
        self.unknown_id = vocabulary.id_of("[UNK]")
        """Id of [UNK]."""
        self._dtype = token_dtype(len(vocabulary))
        self._sentences = sentences
        self._key = np.uint64(content_key)
        self._characters = CharacterTable(self._reference, vocabulary.strip_accents)
        self._trie = make_trie(vocabulary.pieces)
        self._table, self._rule_words = make_word_table(), make_rule_words()
        self._unknown = np.zeros(0x110000, np.int64)
        self._has_logged = False
        self._unchecked = _CHECK_EVERY_BYTES  # bytes encoded since the last check
        self.is_fast = is_fast
        if is_fast:
            self.check(_chunk_of(_CHECKED_TEXT.encode()))
            self.take_unknown()
            self._unchecked = _CHECK_EVERY_BYTES

    @property
    def arrays(self) -> Characters:
        """What is known of characters so far."""
        return self._characters.arrays

    def encode(self, chunk: TextChunk) -> Encoded:
        """Return the documents of a chunk."""
        self._unchecked += len(chunk.data)
        if not self.is_fast:
            return self.encode_plain(chunk)
        if self._sentences not in OWN_RULES:
            chunk = self._split(chunk)
        data = np.frombuffer(chunk.data, np.uint8)
        while (page := missing_page(data, self._characters.arrays.is_loaded)) >= 0:
            self._characters.load(page)
        if has_flag(data, self._characters.arrays.flags, ch.IRREGULAR):
            return self._encode_in_parts(chunk)
        return self._scan(chunk, data)

    def check(self, chunk: TextChunk) -> None:
        """Take the plain way from now on where the fast one does not give the same.

        Args:
            chunk: text to try it with; the first part of it is used, unless not much has been
                encoded since it was tried last.
        """
        if not self.is_fast or not len(chunk.starts) or self._unchecked < _CHECK_EVERY_BYTES:
            return
        self._unchecked = 0
        sample = _sample(chunk)
        known_so_far = self.take_unknown()
        fast, plain = self.encode(sample), self.encode_plain(sample)
        self.take_unknown()
        for character, count in known_so_far.items():
            self._unknown[ord(character)] = count
        if not all(map(np.array_equal, fast, plain)):
            logger.warning(
                "the fast way to piece ids does not give those of tokenizers on this text; the "
                "plain way is taken (slower)"
            )
            self.is_fast = False

    def take_unknown(self) -> dict[str, int]:
        """Return how often each character was found that no piece begins with, and forget it."""
        settle_unknown(self._characters.arrays, self._trie, self._table, self._unknown)
        codes = np.flatnonzero(self._unknown)
        counts = {chr(code): int(self._unknown[code]) for code in codes}
        self._unknown[codes] = 0
        return counts

    def encode_plain(self, chunk: TextChunk) -> Encoded:
        """Return the documents of a chunk, each sentence given to the reference as a whole."""
        ids: list[int] = []
        lengths: list[int] = []
        num_sentences, contents = [], []
        texts = [split_sentences(text, self._sentences) for text in chunk.texts()]
        encoded = iter(self._ids_of([sentence for text in texts for sentence in text]))
        for text in texts:
            sentences = [found for _ in text if (found := next(encoded))]
            num_sentences.append(len(sentences))
            lengths += map(len, sentences)
            of_document = [piece for sentence in sentences for piece in sentence]
            contents.append(content_hash(np.array(of_document, np.int64), self._key))
            ids += of_document
        return Encoded(
            np.array(num_sentences, np.int64),
            np.array(contents, np.uint64),
            np.array(lengths, np.uint32),
            np.array(ids, self._dtype),
        )

    def _ids_of(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return the ids of each sentence; unknown characters are counted."""
        found: list[list[int]] = []
        for start in range(0, len(sentences), _BATCH_SENTENCES):
            batch = list(sentences[start : start + _BATCH_SENTENCES])  # an encoding is large
            found += [e.ids for e in self._reference.encode_batch(batch, add_special_tokens=False)]
        for sentence, ids in zip(sentences, found, strict=True):
            if self.unknown_id in ids:
                self._count_unknown(sentence)
        return found

    def _count_unknown(self, sentence: str) -> None:
        """Count what no piece begins with in the words of a sentence that hold [UNK]."""
        for word in sentence.split(" "):
            encoding = self._reference.encode(word, add_special_tokens=False)
            if self.unknown_id not in encoding.ids:
                continue
            parts = self._reference.pre_tokenizer.pre_tokenize_str(
                self._reference.normalizer.normalize_str(word)
            )
            for character in "".join(part for part, _ in parts):
                self._unknown[ord(character)] += not self._is_known(character)

    def _is_known(self, character: str) -> bool:
        """Return whether a piece begins with the character."""
        if not hasattr(self, "_first_characters"):
            firsts = {piece[:1] for piece in self._pieces}
            firsts |= {piece[2:3] for piece in self._pieces if piece.startswith("##")}
            self._first_characters = frozenset(firsts)
        return character in self._first_characters

    def _split(self, chunk: TextChunk) -> TextChunk:
        """Return the chunk with a sentence a line, cut by another package."""
        documents = [
            "\n".join(split_sentences(text, self._sentences)).encode() for text in chunk.texts()
        ]
        ends = np.cumsum([len(document) for document in documents], dtype=np.int64)
        starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        return chunk._replace(data=b"".join(documents), starts=starts, ends=ends)

    def _encode_in_parts(self, chunk: TextChunk) -> Encoded:
        """Return the documents with irregular characters the plain way, the others the fast one."""
        if not self._has_logged:
            self._has_logged = True
            logger.info(
                "documents with characters whose normal form depends on their neighbours take the "
                "plain way to piece ids (slower)"
            )
        flags = self._characters.arrays.flags
        is_irregular = documents_with_flag(
            np.frombuffer(chunk.data, np.uint8), chunk.starts, chunk.ends, flags, ch.IRREGULAR
        )
        borders = np.flatnonzero(np.diff(is_irregular)) + 1
        parts = []
        for first, last in pairwise([0, *borders.tolist(), len(is_irregular)]):
            part = _part(chunk, first, last)
            if is_irregular[first]:
                parts.append(self.encode_plain(part))
            else:
                parts.append(self._scan(part, np.frombuffer(part.data, np.uint8)))
        return Encoded(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _scan(self, chunk: TextChunk, data: npt.NDArray[np.uint8]) -> Encoded:
        """Return the documents of a chunk by compiled code."""
        count = len(chunk.starts)
        out = Scanned(
            np.empty(4 * len(data) + 1024, self._dtype),  # what is not used takes no memory
            np.empty(len(data) + 1, np.uint32),
            np.empty(count, np.int64),
            np.empty(count, np.uint64),
            np.zeros(2, np.int64),
            self._unknown,
        )
        settings = ScanSettings(self._sentences != "rules", self._key, self.unknown_id)
        tables = Tables(self._characters.arrays, self._trie, self._rule_words, self._table)
        has_room = scan(data, chunk.starts, chunk.ends, settings, tables, out)
        assert has_room, "a character has more than four pieces"
        return Encoded(
            out.num_sentences,
            out.content,
            out.sentence_lengths[: out.used[1]].copy(),
            out.ids[: out.used[0]].copy(),
        )


@compiled
def content_hash(ids: IntArray, key: np.uint64) -> np.uint64:
    """Return the hash of a document by its piece ids, as `scan` computes it."""
    content = key
    for piece in ids:
        content = hash_piece(content, np.uint64(piece))
    return finish_hash(content)


def _chunk_of(data: bytes) -> TextChunk:
    """Return one document as a chunk."""
    return TextChunk(data, np.zeros(1, np.int64), np.full(1, len(data)), np.zeros(1, np.uint64))


def _part(chunk: TextChunk, first: int, last: int) -> TextChunk:
    """Return documents [first, last) of a chunk, at least one."""
    start, end = int(chunk.starts[first]), int(chunk.ends[last - 1])
    rows = slice(first, last)
    return TextChunk(
        chunk.data[start:end],
        chunk.starts[rows] - start,
        chunk.ends[rows] - start,
        chunk.offsets[rows],
    )


def _sample(chunk: TextChunk) -> TextChunk:
    """Return the first documents of a chunk, about `_SAMPLE_BYTES` of them; a long one is cut."""
    count = int(np.searchsorted(chunk.ends, _SAMPLE_BYTES)) or 1
    ends = chunk.ends[:count].copy()
    end = min(int(ends[-1]), int(chunk.starts[0]) + _SAMPLE_BYTES)
    while end < len(chunk.data) and chunk.data[end] & 0xC0 == 0x80:
        end -= 1
    ends[-1] = end
    return TextChunk(chunk.data[:end], chunk.starts[:count], ends, chunk.offsets[:count])


def encode_texts(encoder: TextEncoder, texts: Iterable[str]) -> list[list[int]]:
    """Return the piece ids of each text, sentences end to end; for a few texts."""
    found: list[list[int]] = []
    for text in texts:
        ids: npt.NDArray[Any] = encoder.encode(_chunk_of(text.encode())).ids
        found.append(ids.tolist())
    return found
