"""Pairs: adjacent where they say so, from another document where they say so, nothing lost."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.stages.pairs import (
    Documents,
    PairKind,
    PairRules,
    RandomNext,
    cut_long_sentences,
    make_pairs,
)

Corpus = list[tuple[list[int], int]]
corpora = st.lists(
    st.tuples(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 3)),
    min_size=1,
    max_size=8,
)


class Document(NamedTuple):
    """A document as the tests look at it."""

    bounds: list[int]
    """Offsets in the flat ids: sentence i is [bounds[i], bounds[i + 1])."""
    content: int


class Pair(NamedTuple):
    """A row as the tests look at it."""

    a_start: int
    a_end: int
    b_start: int
    b_end: int
    label: int


def documents_of(corpus: Corpus) -> list[Document]:
    """Documents end to end out of sentence lengths and content hashes."""
    documents, offset = [], 0
    for lengths, content in corpus:
        bounds = [offset]
        for length in lengths:
            bounds.append(bounds[-1] + length)
        documents.append(Document(bounds, content))
        offset = bounds[-1]
    return documents


def rules_of(
    kind: PairKind = "next_sentence",
    longest: int = 20,
    short: float = 0.1,
    random_next: RandomNext = "google",
) -> PairRules:
    return PairRules(kind, longest + (2 if kind == "none" else 3), short, random_next)


def columns_of(documents: list[Document], seed: int, copies: int = 1) -> Documents:
    count = len(documents)
    keys = np.random.Generator(np.random.Philox(key=seed)).integers(0, 2**64, count, np.uint64)
    return Documents(
        np.array([len(document.bounds) - 1 for document in documents]),
        np.concatenate([np.diff(document.bounds) for document in documents]),
        np.array([document.content for document in documents], np.uint64),
        keys,
        np.full(count, copies),
    )


def pairs_of(
    documents: list[Document], rules: PairRules, seed: int, copies: int = 1
) -> list[list[Pair]]:
    """The rows of each document."""
    made = make_pairs(columns_of(documents, seed, copies), rules)
    rows = [
        Pair(a, a + a_size, b, b + b_size, label)
        for a, a_size, b, b_size, label in zip(
            *(column.tolist() for column in made[:5]), strict=True
        )
    ]
    # Sentence order may swap the segments: the one that comes first names the owner of the row.
    if rules.kind == "sentence_order":
        owners = [min(row.a_start, row.b_start) for row in rows]
    else:
        owners = [row.a_start for row in rows]
    return [
        [
            row
            for row, at in zip(rows, owners, strict=True)
            if document.bounds[0] <= at < document.bounds[-1]
        ]
        for document in documents
    ]


def document_at(documents: list[Document], offset: int) -> Document:
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
    cut = cut_long_sentences(columns_of(documents_of([([2, 13, 1], 1), ([4], 2)]), 0), 5)
    assert cut.sentence_lengths.tolist() == [2, 5, 5, 3, 1, 4]
    assert cut.num_sentences.tolist() == [5, 1]
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


def test_half_of_all_pairs_are_random_where_balance_is_asked_for() -> None:
    # Many chunks are a single sentence: Google's way makes all of these random.
    documents = documents_of([([50, 10] * 100, content) for content in range(20)])
    shares = {}
    for random_next in ("google", "balanced"):
        rules = rules_of(longest=50, random_next=random_next)
        labels = [p.label for pairs in pairs_of(documents, rules, 0) for p in pairs]
        shares[random_next] = np.mean(labels)
        count = len(labels)
    assert shares["google"] > 0.6
    assert abs(shares["balanced"] - 0.5) < 5 * np.sqrt(0.25 / count)


@settings(max_examples=100, deadline=None)
@given(
    corpus=corpora, seed=st.integers(0, 1000), longest=st.integers(5, 40), is_whole=st.booleans()
)
def test_balanced_labels_are_true_and_no_sentence_is_left_out(
    corpus: Corpus, seed: int, longest: int, is_whole: bool
) -> None:
    documents = documents_of(corpus)
    longest = 1000 if is_whole else longest
    rules = rules_of(longest=longest, random_next="balanced", short=0)
    for document, pairs in zip(documents, pairs_of(documents, rules, seed), strict=True):
        for pair in pairs:
            other = document_at(documents, pair.b_start)
            assert (other is document) == (pair.label == 0)
            assert other.content != document.content or pair.label == 0
        sentences = set(range(len(document.bounds) - 1))
        used = {
            sentence
            for sentence in sentences
            for p in pairs
            for start, end in ((p.a_start, p.a_end), (p.b_start, p.b_end))
            if start < document.bounds[sentence + 1] and document.bounds[sentence] < end
        }
        if is_whole and document.bounds[-1] - document.bounds[0] > 1:
            assert used == sentences


@settings(max_examples=100, deadline=None)
@given(corpus=corpora, seed=st.integers(0, 1000), longest=st.integers(9, 40))
def test_rows_without_pairs_hold_every_token_once_in_whole_sentences(
    corpus: Corpus, seed: int, longest: int
) -> None:
    documents = documents_of(corpus)
    rules = rules_of("none", longest=longest, short=0)
    for document, rows in zip(documents, pairs_of(documents, rules, seed), strict=True):
        assert [row.a_start for row in rows] == [document.bounds[0], *(r.a_end for r in rows[:-1])]
        assert rows[-1].a_end == document.bounds[-1]
        for row in rows:
            assert row.b_start == row.b_end
            assert row.label == 0
            assert row.a_end - row.a_start <= longest
            assert {row.a_start, row.a_end} <= set(document.bounds)
            if row.a_end < document.bounds[-1]:  # one more sentence would not have fitted
                following = document.bounds[document.bounds.index(row.a_end) + 1]
                assert following - row.a_start > longest


def test_partners_among_many_equal_documents_are_found_at_once() -> None:
    corpus = [([2], 1)] * 50_000 + [([2], 2), ([3], 3)] + [([2], 1)] * 50_000
    made = make_pairs(columns_of(documents_of(corpus), 0), rules_of())
    assert len(made) == len(corpus)
    assert made.label.all()
    of_equal = np.isin(made.a_start, [100_000, 100_002], invert=True)
    assert set(made.b_start[of_equal].tolist()) <= {100_000, 100_002}


def test_copies_of_a_document_have_other_pairs_and_other_masks() -> None:
    documents = documents_of([([5, 6, 7] * 20, 1), ([4] * 20, 2)])
    made = make_pairs(columns_of(documents, 3, copies=4), rules_of(longest=1000, short=0))
    assert len(set(made.row_keys.tolist())) == len(made)
    starts = np.flatnonzero(made.a_start == 0)
    assert len(starts) == 4
    one = [pairs_of(documents, rules_of(), seed)[0] for seed in (3, 4)]
    assert one[0] != one[1]
    rows = list(zip(*(column.tolist() for column in made[:5]), strict=True))
    of_copies = [
        rows[start:end] for start, end in zip(starts, [*starts[1:], len(rows)], strict=True)
    ]
    assert len({tuple(copy) for copy in of_copies}) == len(of_copies)


def test_a_document_may_be_used_not_at_all() -> None:
    documents = columns_of(documents_of([([5] * 9, 1), ([4] * 9, 2)]), 0)
    made = make_pairs(documents._replace(copies=np.array([0, 2])), rules_of())
    assert len(made) > 1
    assert np.all(made.a_start >= 45)


@pytest.mark.parametrize("seed", [0, 7])
def test_pairs_depend_on_the_keys_of_the_documents_alone(seed: int) -> None:
    documents = documents_of([([5, 6, 7] * 5, 1), ([4] * 20, 2)])
    assert pairs_of(documents, rules_of(), seed) == pairs_of(documents, rules_of(), seed)
    assert pairs_of(documents, rules_of(), seed) != pairs_of(documents, rules_of(), seed + 1)


@settings(max_examples=60, deadline=None)
@given(
    corpus=corpora,
    kind=st.sampled_from(["next_sentence", "sentence_order", "none"]),
    random_next=st.sampled_from(["google", "balanced"]),
    seed=st.integers(0, 9),
)
def test_rows_that_divide_a_sentence_are_those_whose_border_is_none_of_its_document(
    corpus: Corpus, kind: PairKind, random_next: RandomNext, seed: int
) -> None:
    documents = documents_of(corpus)
    rules = rules_of(kind, longest=100, short=0.3, random_next=random_next)  # nothing is cut off
    made = make_pairs(columns_of(documents, seed), rules)
    bounds = {bound for document in documents for bound in document.bounds}
    for row in range(len(made)):
        starts = {int(made.a_start[row]), int(made.b_start[row])}
        is_divided = kind != "none" and not starts <= bounds
        assert made.is_divided[row] == is_divided
