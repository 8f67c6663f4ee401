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
    sequence_length: int
    short_sequence_probability: float
    random_next: RandomNext = "google"
    """Whose second segments are random: "google" half of the chunks and every chunk of one
    sentence; "balanced" half of all: a chunk of one sentence takes the next one as well, or is cut
    in two."""

    @property
    def max_tokens(self) -> int:
        """Most tokens of the segments: the row without [CLS] and its one or two [SEP]."""
        return self.sequence_length - (2 if self.kind == "none" else 3)


class Documents(NamedTuple):
    """Documents that rows are made of, one being the partner of another.

    Attributes:
        num_sentences: int64 [D], sentences of each document.
        sentence_lengths: int64 [S], tokens of each sentence, none of them 0.
        content: uint64 [D], hash of the text; equal texts have equal hashes.
        keys: uint64 [D], whose random numbers a document gets.
        copies: int64 [D], how often each is used.
    """

    num_sentences: IntArray
    sentence_lengths: IntArray
    content: WordArray
    keys: WordArray
    copies: IntArray


class Pairs(NamedTuple):
    """Two spans of the flat ids for each row, the second empty where there are no pairs.

    Attributes:
        a_start: int64 [n], as are a_length, b_start and b_length.
        a_length: see a_start.
        b_start: see a_start.
        b_length: see a_start.
        label: uint8 [n], 0 for next (in order), 1 for random (swapped).
        is_divided: bool [n], whether the spans are the two parts of one sentence.
        row_keys: uint64 [n], whose random numbers the masks of the row get.
    """

    a_start: IntArray
    a_length: IntArray
    b_start: IntArray
    b_length: IntArray
    label: npt.NDArray[np.uint8]
    is_divided: npt.NDArray[np.bool_]
    row_keys: WordArray

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.label)

    def taken(self, rows: IntArray) -> Pairs:
        """The given rows in the given order."""
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
    """The documents with more cuts, so that no sentence has over `longest` tokens."""
    lengths = documents.sentence_lengths
    parts = -(-lengths // longest)
    if not np.any(parts > 1):
        return documents
    cut = np.full(int(parts.sum()), longest, np.int64)
    cut[np.cumsum(parts) - 1] = lengths - (parts - 1) * longest
    first = np.cumsum(documents.num_sentences) - documents.num_sentences
    return documents._replace(num_sentences=np.add.reduceat(parts, first), sentence_lengths=cut)


def make_pairs(documents: Documents, rules: PairRules) -> Pairs:
    """The rows of all documents and their copies, in the order of the documents.

    A chunk of one sentence without a partner to have (sentence order, or no other document) is cut
    in two between tokens; one of a single token gives no row.

    Args:
        documents: at least one, each with at least one sentence.
        rules: kind and lengths.
    """
    cut = cut_long_sentences(documents, rules.max_tokens)
    bounds = np.concatenate([[0], np.cumsum(cut.sentence_lengths)])
    first = np.concatenate([[0], np.cumsum(cut.num_sentences)])
    has_partners = rules.kind == "next_sentence" and bool(np.any(cut.content != cut.content[0]))
    arguments = (
        bounds,
        first,
        cut.content,
        _next_others(cut.content),
        cut.keys,
        cut.copies,
        _KINDS.index(rules.kind),
        has_partners,
        rules.random_next == "balanced",
        rules.sequence_length,
        rules.max_tokens,
        rules.short_sequence_probability,
    )
    count = _make_all(*arguments, *_columns(0))
    pairs = _columns(count)
    _make_all(*arguments, *pairs)
    return pairs


def _columns(count: int) -> Pairs:
    """Room for `count` rows."""
    spans = np.empty((4, count), np.int64)
    label, is_divided = np.empty(count, np.uint8), np.empty(count, np.bool_)
    row_keys = np.empty(count, np.uint64)
    return Pairs(spans[0], spans[1], spans[2], spans[3], label, is_divided, row_keys)


@compiled
def _next_others(content: WordArray) -> IntArray:
    """The next document with another text, around the end, for each; int64 [D]."""
    count = len(content)
    others = np.zeros(count, np.int64)
    for place in range(2 * count - 1, -1, -1):
        document, after = place % count, (place + 1) % count
        is_same = content[after] == content[document]
        others[document] = others[after] if is_same else after
    return others


@compiled
def _make_all(
    bounds: IntArray,
    first: IntArray,
    content: WordArray,
    next_others: IntArray,
    keys: WordArray,
    copies: IntArray,
    kind: int,
    has_partners: bool,
    is_balanced: bool,
    sequence_length: int,
    longest: int,
    short_probability: float,
    a_start: IntArray,
    a_length: IntArray,
    b_start: IntArray,
    b_length: IntArray,
    label: npt.NDArray[np.uint8],
    is_divided: npt.NDArray[np.bool_],
    row_keys: WordArray,
) -> int:
    """Counts the rows, and writes them where the last arrays have room; returns how many."""
    stream, of_row = np.empty(STREAM_WORDS, np.uint64), np.empty(STREAM_WORDS, np.uint64)
    pair = np.empty(5, np.int64)  # a_start, a_end, b_start, b_end, whether one sentence is divided
    made = 0
    for document in range(len(keys)):
        last = first[document + 1]
        for copy in range(copies[document]):
            start_stream(stream, keys[document], 0, copy, sequence_length)
            start, row = first[document], 0
            while start < last:
                target = longest
                if next_is_below(stream, short_probability):
                    target = _SHORTEST_TARGET + next_below(stream, longest - _SHORTEST_TARGET + 1)
                pair[4] = 0
                if kind == _NONE:
                    end, of_pair = _whole_sentences(bounds, start, last, target, pair), 0
                else:
                    end, of_pair = _pair(
                        bounds, first, content, next_others, document, start, last, target,
                        kind, has_partners, is_balanced, stream, pair,
                    )  # fmt: skip
                start = end
                if of_pair < 0:
                    continue
                _truncate(pair, longest, stream)
                if made < len(label):
                    a_start[made], a_length[made] = pair[0], pair[1] - pair[0]
                    b_start[made], b_length[made] = pair[2], pair[3] - pair[2]
                    label[made], is_divided[made] = of_pair, pair[4] != 0
                    start_stream(of_row, keys[document], row + 1, copy, sequence_length)
                    philox(of_row)
                    row_keys[made] = (of_row[7] << _SHIFT) | of_row[6]
                made += 1
                row += 1
    return made


@compiled
def _whole_sentences(bounds: IntArray, start: int, last: int, target: int, pair: IntArray) -> int:
    """As many whole sentences as fit, at least one; returns the sentence after them."""
    end = start + 1
    while end < last and bounds[end + 1] - bounds[start] <= target:
        end += 1
    pair[0], pair[1], pair[2], pair[3] = bounds[start], bounds[end], bounds[end], bounds[end]
    return end


@compiled
def _pair(
    bounds: IntArray,
    first: IntArray,
    content: WordArray,
    next_others: IntArray,
    document: int,
    start: int,
    last: int,
    target: int,
    kind: int,
    has_partners: bool,
    is_balanced: bool,
    stream: WordArray,
    pair: IntArray,
) -> tuple[int, int]:
    """Writes the next pair of a document.

    Returns:
        The sentence to go on from, and the label; -1 where there is no pair.
    """
    end = start + 1
    while end < last and bounds[end] - bounds[start] < target:
        end += 1
    middle = start + 1 + next_below(stream, end - start - 1)
    is_alone = end - start == 1 and not is_balanced
    is_alone |= end == last and bounds[end] - bounds[start] < 2  # it cannot be cut
    if has_partners and (is_alone or next_is_below(stream, 0.5)):
        pair[0], pair[1] = bounds[start], bounds[middle]
        wanted = target - pair[1] + pair[0]
        _partner(bounds, first, content, next_others, document, wanted, stream, pair)
        return middle, 1  # the displaced sentences are used again
    if end - start == 1 and is_balanced and has_partners and end < last:
        end += 1
        middle = start + 1
    cut = bounds[middle]
    if end - start == 1:
        if bounds[end] - bounds[start] < 2:
            return end, -1
        cut = bounds[start] + 1 + next_below(stream, bounds[end] - bounds[start] - 1)
        pair[4] = 1
    if kind == _SENTENCE_ORDER and next_is_below(stream, 0.5):
        pair[0], pair[1], pair[2], pair[3] = cut, bounds[end], bounds[start], cut
        return end, 1
    pair[0], pair[1], pair[2], pair[3] = bounds[start], cut, cut, bounds[end]
    return end, 0


@compiled
def _partner(
    bounds: IntArray,
    first: IntArray,
    content: WordArray,
    next_others: IntArray,
    document: int,
    wanted: int,
    stream: WordArray,
    pair: IntArray,
) -> None:
    """Writes a span of another document of about `wanted` tokens to the end of `pair`."""
    other = next_below(stream, len(next_others))
    if content[other] == content[document]:
        other = next_others[other]
    begin, last = first[other], first[other + 1]
    begin += next_below(stream, last - begin)
    end = begin + 1
    while end < last and bounds[end] - bounds[begin] < wanted:
        end += 1
    pair[2], pair[3] = bounds[begin], bounds[end]


@compiled
def _truncate(pair: IntArray, longest: int, stream: WordArray) -> None:
    """Brings a pair within `longest`: the longer segment loses tokens, at random front or back."""
    a, b = pair[1] - pair[0], pair[3] - pair[2]
    excess = a + b - longest
    if excess <= 0:
        return
    from_longer = min(excess, abs(a - b))
    shared = excess - from_longer
    cut_a = shared // 2 + (from_longer if a > b else 0)
    cut_b = (shared + 1) // 2 + (from_longer if b >= a else 0)
    front_a, front_b = next_heads(stream, cut_a), next_heads(stream, cut_b)
    pair[0] += front_a
    pair[1] -= cut_a - front_a
    pair[2] += front_b
    pair[3] -= cut_b - front_b
