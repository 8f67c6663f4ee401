"""Pairs of segments out of documents: next sentence, or sentence order.

A document is a run of sentences in one flat array of piece ids, so a segment is a span and a pair
is five integers. Sentences are gathered up to a target length and cut in two at random; for next
sentence prediction half of the second segments come from another document, and the sentences they
displace are used again.

Source: Devlin et al. 2018, appendix A.2; Lan et al. 2020 (sentence order); the behaviour of
google-research/bert, create_pretraining_data.py. Differs from Google: the short target is drawn for
each chunk, not once a document, which keeps its share of the rows at its probability; a sentence
longer than a row is cut into rows, not thrown away; a random partner is never the same document nor
one with the same text.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import comb
from typing import Literal, NamedTuple

import numpy as np

PairKind = Literal["next_sentence", "sentence_order"]

_SHORTEST_TARGET = 2  # one token for each segment


class Pair(NamedTuple):
    """Two spans [start, end) of the flat ids, and 0 for next (in order), 1 for random (swapped)."""

    a_start: int
    a_end: int
    b_start: int
    b_end: int
    label: int


class PairDocument(NamedTuple):
    """One document among those that pairs are made of."""

    bounds: list[int]
    """Offsets in the flat ids: sentence i is [bounds[i], bounds[i + 1])."""
    content: int
    """Hash of the text; equal texts have equal hashes."""


@dataclass(frozen=True)
class PairRules:
    """What decides the pairs besides the random numbers."""

    kind: PairKind
    max_tokens: int
    """Most tokens of both segments: the row without [CLS] and two [SEP]."""
    short_sequence_probability: float


def cut_long_sentences(bounds: Sequence[int], longest: int) -> list[int]:
    """`bounds` with more cuts, so that no sentence has over `longest` tokens."""
    cut = [bounds[0]]
    for end in bounds[1:]:
        cut.extend(range(cut[-1] + longest, end, longest))
        cut.append(end)
    return cut


class PairMaker:
    """Makes the pairs of each of some documents, the others being partners.

    Args:
        documents: each with at least one token.
        rules: kind and lengths.
    """

    def __init__(self, documents: Sequence[PairDocument], rules: PairRules) -> None:
        self._rules = rules
        self._documents = [
            document._replace(bounds=cut_long_sentences(document.bounds, rules.max_tokens))
            for document in documents
        ]
        contents = {document.content for document in documents}
        self._has_partners = rules.kind == "next_sentence" and len(contents) > 1

    def pairs(self, index: int, generator: np.random.Generator) -> list[Pair]:
        """The pairs of document `index`, in the order of its text.

        A chunk of one sentence gets a random partner; where there is none to have (sentence order,
        or no other document) it is cut in two between tokens, and one of a single token gives none.
        """
        draw = _uniforms(generator).__next__
        bounds = self._documents[index].bounds
        made, start, last = [], 0, len(bounds) - 1
        while start < last:
            target = self._target(draw)
            end = min(bisect_left(bounds, bounds[start] + target, start + 1), last)
            middle = start + 1 + int(draw() * (end - start - 1))
            if self._has_partners and (end - start == 1 or draw() < 0.5):
                b_start, b_end = self._partner(index, target, bounds[middle] - bounds[start], draw)
                pair = Pair(bounds[start], bounds[middle], b_start, b_end, 1)
                end = middle  # the displaced sentences are used again
            elif end - start > 1:
                pair = self._adjacent(bounds[start], bounds[middle], bounds[end], draw)
            elif bounds[end] - bounds[start] > 1:
                cut = bounds[start] + 1 + int(draw() * (bounds[end] - bounds[start] - 1))
                pair = self._adjacent(bounds[start], cut, bounds[end], draw)
            else:
                start = end
                continue
            made.append(_truncated(pair, self._rules.max_tokens, draw))
            start = end
        return made

    def _target(self, draw: Callable[[], float]) -> int:
        """Tokens to gather for the next chunk."""
        longest = self._rules.max_tokens
        if draw() < self._rules.short_sequence_probability:
            return _SHORTEST_TARGET + int(draw() * (longest - _SHORTEST_TARGET + 1))
        return longest

    def _adjacent(self, start: int, middle: int, end: int, draw: Callable[[], float]) -> Pair:
        """Two spans that follow each other; half of them swapped for sentence order."""
        if self._rules.kind == "sentence_order" and draw() < 0.5:
            return Pair(middle, end, start, middle, 1)
        return Pair(start, middle, middle, end, 0)

    def _partner(
        self, index: int, target: int, taken: int, draw: Callable[[], float]
    ) -> tuple[int, int]:
        """A span of another document that fills what `taken` leaves of `target`."""
        documents = self._documents
        other = int(draw() * len(documents))
        while documents[other].content == documents[index].content:
            other = (other + 1) % len(documents)
        bounds = documents[other].bounds
        first = int(draw() * (len(bounds) - 1))
        end = bisect_left(bounds, bounds[first] + max(target - taken, 1), first + 1)
        return bounds[first], bounds[min(end, len(bounds) - 1)]


def _uniforms(generator: np.random.Generator) -> Iterator[float]:
    """Endless numbers uniform in [0, 1), drawn some at a time."""
    while True:
        yield from generator.random(64).tolist()


def _truncated(pair: Pair, longest: int, draw: Callable[[], float]) -> Pair:
    """`pair` within `longest` tokens: the longer segment loses tokens, at random front or back."""
    a, b = pair.a_end - pair.a_start, pair.b_end - pair.b_start
    excess = a + b - longest
    if excess <= 0:
        return pair
    from_longer = min(excess, abs(a - b))
    shared = excess - from_longer
    cut_a = shared // 2 + (from_longer if a > b else 0)
    cut_b = (shared + 1) // 2 + (from_longer if b >= a else 0)
    front_a, front_b = _coin_flips(cut_a, draw()), _coin_flips(cut_b, draw())
    return Pair(
        pair.a_start + front_a,
        pair.a_end - (cut_a - front_a),
        pair.b_start + front_b,
        pair.b_end - (cut_b - front_b),
        pair.label,
    )


def _coin_flips(count: int, uniform: float) -> int:
    """How many of `count` fair coins show heads, by inversion of the binomial distribution."""
    return bisect_right(_binomial_cdf(count), uniform)


@lru_cache(maxsize=4096)
def _binomial_cdf(count: int) -> list[float]:
    """P(at most k heads) of `count` fair coins, for k below `count`; exact before rounding."""
    sums = accumulate(comb(count, heads) for heads in range(count))
    return [partial / (1 << count) for partial in sums]
