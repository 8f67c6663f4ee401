"""Training a WordPiece vocabulary, the same pieces in the same order every time.

The trainer of Hugging Face `tokenizers` gives continuation characters ids in the order of a hash
table that is seeded again in every process, and breaks ties between equally frequent pairs by these
ids. Here words are counted and sorted first, and all single characters are handed to the trainer
beforehand, in order, so that every id and every tie is decided by the text alone.

Source: `tokenizers/src/models/bpe/trainer.rs`, which the WordPiece trainer uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, WhitespaceSplit
from tokenizers.trainers import WordPieceTrainer

from data_prep.contract.errors import InputError, UsageError
from data_prep.contract.wordpiece import CONTINUATION, SPECIAL_PIECES

_REPEATS_A_TEXT = 1000  # bounds the length of a text given to the trainer
_LONGEST_WORD = 100  # characters; the tokeniser makes longer words [UNK]


@dataclass(frozen=True)
class VocabularyOptions:
    """What decides a vocabulary besides the text."""

    size: int = 30_522
    """Pieces wanted, the special ones included; a small corpus gives fewer."""
    lowercase: bool = True
    """Whether text is lowercased."""
    strip_accents: bool = True
    """Whether accents are removed."""
    limit_alphabet: int = 1_000
    """Most different characters kept, the commonest first; others become [UNK]."""
    min_frequency: int = 2
    """A piece of two or more characters must occur this often."""


def count_words(texts: Iterable[str]) -> Counter[str]:
    """Return how often each word occurs, words being what white space separates."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text.split())
    return counts


def train_vocabulary(word_counts: Mapping[str, int], options: VocabularyOptions) -> list[str]:
    """Return the pieces of a vocabulary in the order of their ids, special pieces first.

    Args:
        word_counts: as `count_words` gives them.
        options: size and normalisation.

    Raises:
        InputError: there is no word in the text.
        UsageError: the size does not hold the special pieces and all single characters.
    """
    if options.limit_alphabet < 1:
        raise UsageError(f"--limit-alphabet {options.limit_alphabet}: must be at least 1.")
    counts = _normalised_counts(word_counts, options)
    if not counts:
        raise InputError("--input: no word in the text; give files that hold text.")
    characters = _alphabet(counts, options.limit_alphabet)
    seeds = [*SPECIAL_PIECES, *characters, *_continuations(counts, characters)]
    if options.size < len(seeds):
        raise UsageError(
            f"--vocab-size {options.size} is too small: {len(SPECIAL_PIECES)} special pieces and "
            f"{len(seeds) - len(SPECIAL_PIECES)} single characters need at least {len(seeds)}; "
            "raise it or lower --limit-alphabet."
        )
    return _train(counts, seeds, options)


def _normalised_counts(
    word_counts: Mapping[str, int], options: VocabularyOptions
) -> dict[str, int]:
    """Return how often the words occur that the tokeniser will find, sorted by word."""
    normalizer = BertNormalizer(
        lowercase=options.lowercase, strip_accents=options.strip_accents, clean_text=True
    )
    pre_tokenizer = BertPreTokenizer()
    counts: Counter[str] = Counter()
    for word, count in word_counts.items():
        for part, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(word)):
            if len(part) <= _LONGEST_WORD:
                counts[part] += count
    return dict(sorted(counts.items()))


def _alphabet(counts: Mapping[str, int], limit: int) -> list[str]:
    """Return the commonest characters by code point; of equally common ones the smaller stays."""
    characters: Counter[str] = Counter()
    for word, count in counts.items():
        for character in word:
            characters[character] += count
    ranked = sorted(characters, key=lambda character: (-characters[character], character))
    return sorted(ranked[:limit])


def _continuations(counts: Mapping[str, int], characters: Iterable[str]) -> list[str]:
    """Return the characters that occur inside a word, as pieces."""
    inside = {character for word in counts for character in word[1:]}
    return [CONTINUATION + character for character in characters if character in inside]


def _train(counts: Mapping[str, int], seeds: list[str], options: VocabularyOptions) -> list[str]:
    """Run the trainer with `seeds` as the first ids."""
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    trainer = WordPieceTrainer(
        vocab_size=options.size,
        min_frequency=options.min_frequency,
        special_tokens=seeds,
        limit_alphabet=0,
        initial_alphabet=[seed for seed in seeds if len(seed) == 1],
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_repeated(counts), trainer)
    ids = tokenizer.get_vocab(with_added_tokens=False)
    return sorted(ids, key=ids.__getitem__)


def _repeated(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield texts that hold every word as often as it was counted."""
    for word, count in counts.items():
        for start in range(0, count, _REPEATS_A_TEXT):
            yield " ".join([word] * min(_REPEATS_A_TEXT, count - start))
