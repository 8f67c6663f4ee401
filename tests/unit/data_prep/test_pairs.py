"""Pairs: adjacent where they say so, from another document where they say so, nothing lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.pairs import (
    Pair,
    PairDocument,
    PairKind,
    PairMaker,
    PairRules,
    cut_long_sentences,
)
from data_prep.randomness import keyed_generator

Corpus = list[tuple[list[int], int]]
corpora = st.lists(
    st.tuples(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 3)),
    min_size=1,
    max_size=8,
)


def documents_of(corpus: Corpus) -> list[PairDocument]:
    """Documents end to end out of sentence lengths and content hashes."""
    documents, offset = [], 0
    for lengths, content in corpus:
        bounds = [offset]
        for length in lengths:
            bounds.append(bounds[-1] + length)
        documents.append(PairDocument(bounds, content))
        offset = bounds[-1]
    return documents


def rules_of(kind: PairKind = "next_sentence", longest: int = 20, short: float = 0.1) -> PairRules:
    return PairRules(kind, longest, short)


def pairs_of(documents: list[PairDocument], rules: PairRules, seed: int) -> list[list[Pair]]:
    maker = PairMaker(documents, rules)
    return [maker.pairs(i, keyed_generator(seed, i)) for i in range(len(documents))]


def document_at(documents: list[PairDocument], offset: int) -> PairDocument:
    return next(d for d in documents if d.bounds[0] <= offset < d.bounds[-1])


@settings(max_examples=200, deadline=None)
@given(corpus=corpora, seed=st.integers(0, 1000), longest=st.integers(5, 40))
def test_labels_of_next_sentence_pairs_are_true(corpus: Corpus, seed: int, longest: int) -> None:
    documents = documents_of(corpus)
    for document, pairs in zip(
        documents, pairs_of(documents, rules_of(longest=longest), seed), strict=True
    ):
        for pair in pairs:
            size = pair.a_end - pair.a_start + pair.b_end - pair.b_start
            assert pair.a_end > pair.a_start
            assert pair.b_end > pair.b_start
            assert size <= longest
            assert document.bounds[0] <= pair.a_start < pair.a_end <= document.bounds[-1]
            other = document_at(documents, pair.b_start)
            assert pair.b_end <= other.bounds[-1]
            if pair.label == 0:
                assert other is document
                assert pair.b_start >= pair.a_end
                if size < longest:  # nothing was truncated: B begins where A ends
                    assert pair.b_start == pair.a_end
            else:
                assert other.content != document.content


@settings(max_examples=100, deadline=None)
@given(corpus=corpora, seed=st.integers(0, 1000))
def test_sentence_order_pairs_are_adjacent_and_the_label_says_swapped(
    corpus: Corpus, seed: int
) -> None:
    documents = documents_of(corpus)
    rules = rules_of("sentence_order", longest=1000)
    for document, pairs in zip(documents, pairs_of(documents, rules, seed), strict=True):
        for pair in pairs:
            first, second = (pair[:2], pair[2:4])[:: -1 if pair.label else 1]
            assert first[1] == second[0]
            assert document.bounds[0] <= first[0]
            assert second[1] <= document.bounds[-1]


def test_truncated_label_0_pairs_have_only_truncated_tokens_between_them() -> None:
    # Sentences of 10 tokens, rows of 25: three sentences a chunk, so every full pair loses five.
    documents = documents_of([([10] * 30, 1), ([10] * 30, 2)])
    gaps, fronts = [], []
    for seed in range(40):
        for pair in pairs_of(documents, rules_of(longest=25, short=0), seed)[0]:
            if pair.label == 0 and pair.b_end - pair.a_start > 10:
                gaps.append(pair.b_start - pair.a_end)
                fronts.append(pair.a_start % 10)
                assert pair.a_end - pair.a_start + pair.b_end - pair.b_start <= 25
    assert 0 <= min(gaps) <= max(gaps) <= 5
    assert len(set(fronts)) > 1  # sometimes front, sometimes back


def test_displaced_sentences_are_used_again() -> None:
    documents = documents_of([([3] * 40, 1), ([4] * 40, 2)])
    for seed in range(20):
        pairs = pairs_of(documents, rules_of(longest=1000, short=0), seed)[0]
        covered = {t for p in pairs for t in range(p.a_start, p.a_end)}
        covered |= {t for p in pairs if p.label == 0 for t in range(p.b_start, p.b_end)}
        assert covered == set(range(120))


def test_about_half_of_the_pairs_are_random() -> None:
    documents = documents_of([([5] * 400, content) for content in range(20)])
    labels = [p.label for pairs in pairs_of(documents, rules_of(longest=61), 0) for p in pairs]
    # Chunks of one sentence always get a random partner, so a little over a half; 5 deviations.
    assert 0.45 < np.mean(labels) < 0.62
    assert len(labels) > 600


def test_one_document_gives_true_pairs_only_and_one_sentence_is_cut_in_two() -> None:
    documents = documents_of([([4, 4], 1), ([4, 4], 1)])
    for seed in range(20):
        for pairs in pairs_of(documents, rules_of(longest=30), seed):
            assert {pair.label for pair in pairs} == {0}
    (pairs,) = pairs_of(documents_of([([6], 1)]), rules_of(short=0), 3)
    assert [(p.a_start, p.b_end, p.label) for p in pairs] == [(0, 6, 0)]
    assert pairs[0].a_end == pairs[0].b_start


def test_one_token_and_no_partner_give_no_pair() -> None:
    assert pairs_of(documents_of([([1], 1)]), rules_of(), 0) == [[]]


def test_one_token_with_a_partner_gives_a_random_pair() -> None:
    pairs = pairs_of(documents_of([([1], 1), ([1], 2)]), rules_of(), 0)
    assert pairs == [[Pair(0, 1, 1, 2, 1)], [Pair(1, 2, 0, 1, 1)]]


def test_a_sentence_longer_than_a_row_is_cut_and_kept() -> None:
    assert cut_long_sentences([3, 5, 18, 19], 5) == [3, 5, 10, 15, 18, 19]
    documents = documents_of([([100], 1)])
    (pairs,) = pairs_of(documents, rules_of(longest=20, short=0), 1)
    covered = {t for p in pairs for t in [*range(p.a_start, p.a_end), *range(p.b_start, p.b_end)]}
    assert covered == set(range(100))


def test_the_share_of_short_targets_is_its_probability() -> None:
    documents = documents_of([([1] * 20_000, 1), ([1] * 20_000, 2)])
    pairs = pairs_of(documents, rules_of(longest=50, short=0.3), 5)[0]
    sizes = np.array([p.a_end - p.a_start + p.b_end - p.b_start for p in pairs[:-1]])
    short, count = np.count_nonzero(sizes < 50), len(sizes)
    share = 0.3 * 48 / 49  # a short target may be the full length by chance
    assert abs(short - share * count) < 5 * np.sqrt(count * share * (1 - share))


def test_partners_are_drawn_from_all_other_documents() -> None:
    documents = documents_of([([5] * 60, content) for content in range(6)])
    seen = set()
    for seed in range(30):
        for pair in pairs_of(documents, rules_of(longest=40), seed)[0]:
            if pair.label:
                seen.add(document_at(documents, pair.b_start).content)
    assert seen == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("seed", [0, 7])
def test_pairs_depend_on_the_key_of_the_generator_alone(seed: int) -> None:
    documents = documents_of([([5, 6, 7] * 5, 1), ([4] * 20, 2)])
    assert pairs_of(documents, rules_of(), seed) == pairs_of(documents, rules_of(), seed)
    assert pairs_of(documents, rules_of(), seed) != pairs_of(documents, rules_of(), seed + 1)
