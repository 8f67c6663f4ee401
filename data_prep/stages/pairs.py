"""Rows out of documents: pairs for next sentence or sentence order, or single segments.

A document is a run of sentences in one flat array of piece ids, so a segment is a span and a row is
some integers. Sentences are gathered up to a target length and cut in two at random; for next
sentence prediction half of the second segments come from another document, and the sentences they
displace are used again. Without pairs (RoBERTa's DOC-SENTENCES) a row is as many whole sentences of
one document as fit.

Source: Devlin et al. 2018, appendix A.2; Lan et al. 2020 (sentence order); Liu et al. 2019 (none);
the behaviour of google-research/bert, create_pretraining_data.py. Differs from Google: the short
target is drawn for each chunk, not once a document, which keeps its share of the rows at its
probability; a sentence longer than a row is cut into rows, not thrown away; a random partner is
never the same document nor one with the same text.

Legend: D documents, S sentences, n rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from data_prep.contract.compiled import compiled
from data_prep.contract.format import IntArray
from data_prep.contract.randomness import (
    STREAM_WORDS,
    WordArray,
    next_below,
    next_heads,
    next_is_below,
    philox,
    start_stream,
)

PairKind = Literal["next_sentence", "sentence_order", "none"]
RandomNext = Literal["google", "balanced"]

_KINDS = ("next_sentence", "sentence_order", "none")
_NEXT_SENTENCE, _SENTENCE_ORDER, _NONE = range(3)
_SHORTEST_TARGET = 2  # one token for each segment
_SHIFT = np.uint64(32)


@dataclass(frozen=True)
class PairRules:
    """What decides the rows besides the random numbers."""

    kind: PairKind
    """What the label says; "none" makes rows of one segment."""
    sequence_length: int
    """Tokens of a full row."""
    short_sequence_probability: float
    """Probability that a row is made for a random smaller number of tokens."""
    random_next: RandomNext = "google"
    """Whose second segments are random: "google" half of the chunks and every chunk of one
    sentence; "balanced" half of all: a chunk of one sentence takes the next one as well, or is cut
    in two."""

    @property
    def max_tokens(self) -> int:
        """Most tokens of the segments: those of a row besides [CLS] and its one or two [SEP]."""
        return self.sequence_length - (2 if self.kind == "none" else 3)


class Documents(NamedTuple):
    """Documents that rows are made of, one being the partner of another."""

    num_sentences: IntArray
    """int64 [D], sentences of each document."""
    sentence_lengths: IntArray
    """int64 [S], tokens of each sentence, none of them 0."""
    content: WordArray
    """uint64 [D], hash of the text; equal texts have equal hashes."""
    keys: WordArray
    """uint64 [D], keys of the random numbers that a document gets."""
    copies: IntArray
    """int64 [D], how often each is used."""


class _Texts(NamedTuple):
    """What compiled code looks up to make a pair, and no more: it is passed by value for each."""

    bounds: IntArray
    """int64 [S + 1], the first token of each sentence, and the end of the last."""
    first: IntArray
    """int64 [D + 1], the first sentence of each document, and the end of the last."""
    content: WordArray
    """uint64 [D], as in `Documents`."""
    next_others: IntArray
    """int64 [D], the next document with another text."""


class _Settings(NamedTuple):
    """`PairRules` as the compiled code takes them."""

    kind: int
    """Index in `_KINDS`."""
    has_partners: bool
    """Whether second segments may come from other documents."""
    is_balanced: bool
    """Whether half of all second segments are random, not half of the chunks."""
    sequence_length: int
    """Tokens of a full row; a key of the random numbers."""
    longest: int
    """Most tokens of both segments."""
    short_probability: float
    """Probability of a smaller target."""


class Pairs(NamedTuple):
    """Two spans of the flat ids for each row, the second empty where there are no pairs."""

    a_start: IntArray
    """int64 [n], the first token of A."""
    a_length: IntArray
    """int64 [n], tokens of A."""
    b_start: IntArray
    """int64 [n], the first token of B."""
    b_length: IntArray
    """int64 [n], tokens of B."""
    label: npt.NDArray[np.uint8]
    """uint8 [n], 0 for next (in order), 1 for random (swapped)."""
    is_divided: npt.NDArray[np.bool_]
    """bool [n], whether the spans are the two parts of one sentence."""
    row_keys: WordArray
    """uint64 [n], keys of the random numbers that the masks of the row get."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.label)

    def select(self, rows: IntArray) -> Pairs:
        """Return the given rows in the given order."""
        return Pairs(
            self.a_start[rows],
            self.a_length[rows],
            self.b_start[rows],
            self.b_length[rows],
            self.label[rows],
            self.is_divided[rows],
            self.row_keys[rows],
        )


def cut_long_sentences(documents: Documents, longest: int) -> Documents:
    """Return the documents with more cuts, so that no sentence has over `longest` tokens."""
    lengths = documents.sentence_lengths
    parts = -(-lengths // longest)
    if not np.any(parts > 1):
        return documents
    cut = np.full(int(parts.sum()), longest, np.int64)
    cut[np.cumsum(parts) - 1] = lengths - (parts - 1) * longest
    first = np.cumsum(documents.num_sentences) - documents.num_sentences
    return documents._replace(num_sentences=np.add.reduceat(parts, first), sentence_lengths=cut)


def make_pairs(documents: Documents, rules: PairRules) -> Pairs:
    """Return the rows of all documents and their copies, in the order of the documents.

    A chunk of one sentence without a partner to have (sentence order, or no other document) is cut
    in two between tokens; one of a single token gives no row.

    Args:
        documents: at least one, each with at least one sentence.
        rules: kind and lengths.
    """
    cut = cut_long_sentences(documents, rules.max_tokens)
    texts = _Texts(
        np.concatenate([[0], np.cumsum(cut.sentence_lengths)]),
        np.concatenate([[0], np.cumsum(cut.num_sentences)]),
        cut.content,
        _next_others(cut.content),
    )
    settings = _Settings(
        _KINDS.index(rules.kind),
        rules.kind == "next_sentence" and bool(np.any(cut.content != cut.content[0])),
        rules.random_next == "balanced",
        rules.sequence_length,
        rules.max_tokens,
        rules.short_sequence_probability,
    )
    count = _make_rows(texts, cut.keys, cut.copies, settings, _columns(0))
    pairs = _columns(count)
    _make_rows(texts, cut.keys, cut.copies, settings, pairs)
    return pairs


def _columns(count: int) -> Pairs:
    """Return room for `count` rows."""
    spans = np.empty((4, count), np.int64)
    label, is_divided = np.empty(count, np.uint8), np.empty(count, np.bool_)
    row_keys = np.empty(count, np.uint64)
    return Pairs(spans[0], spans[1], spans[2], spans[3], label, is_divided, row_keys)


@compiled
def _next_others(content: WordArray) -> IntArray:
    """Return the next document with another text, around the end, for each; int64 [D]."""
    count = len(content)
    others = np.zeros(count, np.int64)
    for place in range(2 * count - 1, -1, -1):
        document, after = place % count, (place + 1) % count
        is_same = content[after] == content[document]
        others[document] = others[after] if is_same else after
    return others


# How rows are made. A document is walked from its first sentence to its last, once for each copy:
#
#   target   the tokens that the next row is to have: mostly all, sometimes a random smaller number
#   chunk    sentences from `start` up to the target, at least one: [start, end)
#   A        the first sentences of the chunk, up to a random border: [start, middle)
#   B        the rest of the chunk (label 0), or sentences from a random place of another document
#            (label 1); the walk then resumes at `middle`, so no sentence is lost
#   cut      a pair that is still too long loses tokens at its ends
#
# Every random number comes from the stream of the document and the copy, so the order in which
# numbers are drawn is part of the format of the result: another order, or a number that is drawn
# and not used, changes every row after it. That also holds for a row that is only counted: counting
# and filling walk the same way, and only the writing is left out.
#
# A pair is an array of five numbers, places in the flat piece ids and a flag:
A_START, A_END, B_START, B_END, IS_DIVIDED = range(5)
_NO_PAIR = -1  # as a label: the chunk gives no row


@compiled
def _make_rows(
    texts: _Texts, keys: WordArray, copies: IntArray, settings: _Settings, out: Pairs
) -> int:
    """Write as many rows as `out` has room for; return how many there are."""
    # Fields that the inner loop needs are looked up once: each look costs an atomic operation.
    bounds, first = texts.bounds, texts.first
    a_start, a_length, b_start, b_length = out.a_start, out.a_length, out.b_start, out.b_length
    label, is_divided, row_keys = out.label, out.is_divided, out.row_keys
    longest, sequence_length = settings.longest, settings.sequence_length
    stream, of_row = np.empty(STREAM_WORDS, np.uint64), np.empty(STREAM_WORDS, np.uint64)
    pair = np.empty(5, np.int64)
    made = 0
    for document in range(len(keys)):
        last = first[document + 1]
        for copy in range(copies[document]):
            start_stream(stream, keys[document], 0, copy, sequence_length)
            start, row = first[document], 0
            while start < last:
                target = longest
                if next_is_below(stream, settings.short_probability):
                    target = _SHORTEST_TARGET + next_below(stream, longest - _SHORTEST_TARGET + 1)
                pair[IS_DIVIDED] = 0
                if settings.kind == _NONE:
                    start, new_label = _whole_sentences(bounds, start, last, target, pair), 0
                else:
                    start, new_label = _make_pair(
                        texts, settings, document, start, last, target, stream, pair
                    )
                if new_label == _NO_PAIR:
                    continue
                _truncate(pair, longest, stream)
                if made < len(label):
                    a_start[made], a_length[made] = pair[A_START], pair[A_END] - pair[A_START]
                    b_start[made], b_length[made] = pair[B_START], pair[B_END] - pair[B_START]
                    label[made], is_divided[made] = new_label, pair[IS_DIVIDED] != 0
                    start_stream(of_row, keys[document], row + 1, copy, sequence_length)
                    philox(of_row)
                    row_keys[made] = (of_row[7] << _SHIFT) | of_row[6]
                made += 1
                row += 1
    return made


@compiled
def _whole_sentences(bounds: IntArray, start: int, last: int, target: int, pair: IntArray) -> int:
    """Write as many whole sentences as fit, at least one; return the sentence after them."""
    end = start + 1
    while end < last and bounds[end + 1] - bounds[start] <= target:
        end += 1
    _set_pair(pair, bounds[start], bounds[end], bounds[end], bounds[end])
    return end


@compiled
def _make_pair(
    texts: _Texts,
    settings: _Settings,
    document: int,
    start: int,
    last: int,
    target: int,
    stream: WordArray,
    pair: IntArray,
) -> tuple[int, int]:
    """Write the next pair of a document.

    Returns:
        The sentence that the next pair begins at, and the label; `_NO_PAIR` where there is none.
    """
    bounds = texts.bounds
    end = start + 1
    while end < last and bounds[end] - bounds[start] < target:
        end += 1
    middle = start + 1 + next_below(stream, end - start - 1)
    # A chunk that gives no pair of its own takes a partner in any case.
    is_alone = end - start == 1 and not settings.is_balanced
    is_alone |= end == last and bounds[end] - bounds[start] < 2  # it cannot be cut
    if settings.has_partners and (is_alone or next_is_below(stream, 0.5)):
        tokens_a = bounds[middle] - bounds[start]
        b_start, b_end = _partner(texts, document, target - tokens_a, stream)
        _set_pair(pair, bounds[start], bounds[middle], b_start, b_end)
        return middle, 1  # the displaced sentences are used again
    if end - start == 1 and settings.is_balanced and settings.has_partners and end < last:
        end += 1
        middle = start + 1
    cut = bounds[middle]
    if end - start == 1:
        if bounds[end] - bounds[start] < 2:
            return end, _NO_PAIR
        cut = bounds[start] + 1 + next_below(stream, bounds[end] - bounds[start] - 1)
        pair[IS_DIVIDED] = 1
    if settings.kind == _SENTENCE_ORDER and next_is_below(stream, 0.5):
        _set_pair(pair, cut, bounds[end], bounds[start], cut)
        return end, 1
    _set_pair(pair, bounds[start], cut, cut, bounds[end])
    return end, 0


@compiled
def _set_pair(pair: IntArray, a_start: int, a_end: int, b_start: int, b_end: int) -> None:
    """Set the four borders of a pair."""
    pair[A_START], pair[A_END], pair[B_START], pair[B_END] = a_start, a_end, b_start, b_end


@compiled
def _partner(texts: _Texts, document: int, tokens: int, stream: WordArray) -> tuple[int, int]:
    """Return start and end of about `tokens` tokens of a random other document."""
    bounds = texts.bounds
    other = next_below(stream, len(texts.next_others))
    if texts.content[other] == texts.content[document]:
        other = texts.next_others[other]
    begin, last = texts.first[other], texts.first[other + 1]
    begin += next_below(stream, last - begin)
    end = begin + 1
    while end < last and bounds[end] - bounds[begin] < tokens:
        end += 1
    return bounds[begin], bounds[end]


@compiled
def _truncate(pair: IntArray, longest: int, stream: WordArray) -> None:
    """Bring a pair within `longest`: the longer segment loses tokens, at random front or back."""
    a, b = pair[A_END] - pair[A_START], pair[B_END] - pair[B_START]
    excess = a + b - longest
    if excess <= 0:
        return
    from_longer = min(excess, abs(a - b))
    shared = excess - from_longer
    cut_a = shared // 2 + (from_longer if a > b else 0)
    cut_b = (shared + 1) // 2 + (from_longer if b >= a else 0)
    front_a, front_b = next_heads(stream, cut_a), next_heads(stream, cut_b)
    pair[A_START] += front_a
    pair[A_END] -= cut_a - front_a
    pair[B_START] += front_b
    pair[B_END] -= cut_b - front_b
