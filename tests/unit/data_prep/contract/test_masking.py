"""Masking: worked by hand, its rules for any row, and its shares."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.contract.masking import (
    MaskingKind,
    MaskingRules,
    default_max_predictions,
    mask_rows,
    num_predictions,
)
from tests.support.philox import words

SPECIAL = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
PIECES = [*SPECIAL, *(f"w{i}" for i in range(40)), *(f"##c{i}" for i in range(20))]
FIRST_CONTINUATION = 45


def rules_of(masking: MaskingKind, most: int = 5) -> MaskingRules:
    return MaskingRules(PIECES, SPECIAL, most, masking)


def keys_of(count: int, seed: int = 0) -> np.ndarray:
    """A key for every row."""
    return np.random.Generator(np.random.Philox(key=seed)).integers(0, 2**64, count, np.uint64)


def rows_of(segments: list[tuple[list[int], list[int]]]) -> tuple[np.ndarray, ...]:
    """Flat tokens, lengths, lengths of segment A."""
    rows = [[2, *a, 3, *b, 3] for a, b in segments]
    tokens = np.array([token for row in rows for token in row], np.uint16)
    lengths = np.array([len(row) for row in rows])
    return tokens, lengths, np.array([len(a) + 2 for a, _ in segments])


def test_the_number_of_predictions_is_the_published_formula() -> None:
    lengths = np.array([5, 9, 10, 11, 64, 128, 512])
    assert num_predictions(lengths, 20).tolist() == [
        min(20, max(1, round(0.15 * int(length)))) for length in lengths
    ]
    assert num_predictions(lengths, 80).tolist() == [1, 1, 2, 2, 10, 19, 77]
    assert [default_max_predictions(n) for n in (128, 512, 64)] == [20, 80, 11]


def test_a_row_worked_by_hand() -> None:
    # [CLS] 10 11 [SEP] 12 13 14 [SEP] is 8 tokens: one prediction. Three words of the key: one
    # chooses candidate floor(5 w / 2^32) of the five tokens that may be masked, the second decides
    # what becomes of it, the third draws a piece among the 60 that are not special.
    tokens, length, segment_a = rows_of([([10, 11], [12, 13, 14])])
    rules = rules_of("token", most=3)
    seen = set()
    for key in range(60):
        choice, outcome, piece = (word / 2**32 for word in islice(words(key), 3))
        position = [1, 2, 4, 5, 6][int(choice * 5)]
        expected = tokens.tolist()
        if outcome < 0.8:
            expected[position] = 4
        elif outcome < 0.9:
            expected[position] = 5 + int(piece * 60)
        masked = mask_rows(tokens, length, segment_a, np.array([key], np.uint64), rules)
        assert masked.tokens.tolist() == expected
        assert masked.masked_lm_positions.tolist() == [position]
        assert masked.masked_lm_ids.tolist() == [tokens[position]]
        seen.add((position, 0 if outcome < 0.8 else 1 if outcome < 0.9 else 2))
    assert {position for position, _ in seen} == {1, 2, 4, 5, 6}
    assert {outcome for _, outcome in seen} == {0, 1, 2}
    assert tokens.tolist() == [2, 10, 11, 3, 12, 13, 14, 3]


segment = st.lists(st.integers(5, len(PIECES) - 1), min_size=1, max_size=14)


@pytest.mark.parametrize("masking", ["token", "whole_word"])
@settings(max_examples=60, deadline=None)
@given(segments=st.lists(st.tuples(segment, segment), min_size=1, max_size=6), seed=st.integers(0))
def test_any_rows_keep_the_rules(
    masking: MaskingKind, segments: list[tuple[list[int], list[int]]], seed: int
) -> None:
    tokens, length, segment_a = rows_of(segments)
    rules = rules_of(masking)
    masked = mask_rows(tokens, length, segment_a, keys_of(len(length), seed), rules)
    wanted = num_predictions(length, 5)
    if masking == "token":
        assert masked.num_predictions.tolist() == wanted.tolist()
    assert np.all((masked.num_predictions >= 1) & (masked.num_predictions <= wanted))
    ends = np.cumsum(masked.num_predictions)
    restored = masked.tokens.copy()
    for row, start in enumerate(np.cumsum(length) - length):
        part = slice(ends[row] - masked.num_predictions[row], ends[row])
        positions = masked.masked_lm_positions[part]
        forbidden = {0, segment_a[row] - 1, length[row] - 1}
        assert forbidden.isdisjoint(positions.tolist())
        assert positions.tolist() == sorted(set(positions.tolist()))
        restored[start + positions] = masked.masked_lm_ids[part]
    assert restored.tolist() == tokens.tolist()


def masked_plainly(
    tokens: list[int], segment_a: int, key: int, rules: MaskingRules
) -> tuple[list[int], list[int]]:
    """One row, masked token by token: tokens and positions."""
    ends = {0, segment_a - 1, len(tokens) - 1}
    groups: list[list[int]] = []
    for position in (p for p in range(len(tokens)) if p not in ends):
        continues = rules.is_continuation[tokens[position]] and position - 1 not in ends
        if rules.masking == "whole_word" and continues:
            groups[-1].append(position)
        else:
            groups.append([position])
    candidates = sum(map(len, groups))
    wanted = min(rules.max_predictions_per_seq, max(1, round(0.15 * len(tokens))), candidates)
    choices = candidates if rules.masking == "whole_word" else wanted
    draws = [word / 2**32 for word in islice(words(key), choices + 2 * wanted)]
    if all(len(group) > wanted for group in groups):
        groups = [group[:wanted] for group in groups]
    taken: list[int] = []
    for step in range(min(len(groups), choices)):
        pick = step + int(draws[step] * (len(groups) - step))
        groups[step], groups[pick] = groups[pick], groups[step]
        if len(taken) + len(groups[step]) <= wanted:
            taken += groups[step]
    masked = list(tokens)
    for rank, position in enumerate(sorted(taken)):
        outcome, piece = draws[choices + rank], draws[choices + wanted + rank]
        if outcome < 0.8:
            masked[position] = rules.mask_id
        elif outcome < 0.9:
            masked[position] = int(rules.random_ids[int(piece * len(rules.random_ids))])
    return masked, sorted(taken)


@pytest.mark.parametrize("masking", ["token", "whole_word"])
@settings(max_examples=80, deadline=None)
@given(segments=st.lists(st.tuples(segment, segment), min_size=1, max_size=5), seed=st.integers(0))
def test_compiled_masking_equals_masking_token_by_token(
    masking: MaskingKind, segments: list[tuple[list[int], list[int]]], seed: int
) -> None:
    tokens, length, segment_a = rows_of(segments)
    rules, keys = rules_of(masking), keys_of(len(length), seed)
    masked = mask_rows(tokens, length, segment_a, keys, rules)
    ends = np.cumsum(length)
    expected_tokens, expected_positions = [], []
    for row, end in enumerate(ends):
        one = tokens[end - length[row] : end].tolist()
        plain = masked_plainly(one, int(segment_a[row]), int(keys[row]), rules)
        expected_tokens += plain[0]
        expected_positions += plain[1]
    assert masked.tokens.tolist() == expected_tokens
    assert masked.masked_lm_positions.tolist() == expected_positions


@pytest.mark.parametrize("masking", ["token", "whole_word"])
@settings(max_examples=40, deadline=None)
@given(segments=st.lists(segment, min_size=1, max_size=5), seed=st.integers(0))
def test_rows_of_one_segment_are_masked_but_for_cls_and_sep(
    masking: MaskingKind, segments: list[list[int]], seed: int
) -> None:
    rows = [[2, *tokens, 3] for tokens in segments]
    tokens = np.array([token for row in rows for token in row], np.uint16)
    length = np.array([len(row) for row in rows])
    rules, keys = rules_of(masking), keys_of(len(rows), seed)
    masked = mask_rows(tokens, length, length, keys, rules)
    expected = [
        masked_plainly(row, len(row), int(key), rules) for row, key in zip(rows, keys, strict=True)
    ]
    assert masked.tokens.tolist() == [token for row, _ in expected for token in row]
    positions = [position for _, row in expected for position in row]
    assert masked.masked_lm_positions.tolist() == positions


def test_a_row_does_not_depend_on_the_rows_around_it() -> None:
    tokens, length, segment_a = rows_of([([10, 50, 11], [12] * 9), ([13], [14]), ([15] * 9, [16])])
    for masking in ("token", "whole_word"):
        rules = rules_of(masking)
        keys = keys_of(3)
        together = mask_rows(tokens, length, segment_a, keys, rules)
        ends = np.cumsum(length)
        alone = [
            mask_rows(
                tokens[ends[i] - length[i] : ends[i]],
                length[i : i + 1],
                segment_a[i : i + 1],
                keys[i : i + 1],
                rules,
            ).tokens.tolist()
            for i in range(3)
        ]
        assert together.tokens.tolist() == [token for row in alone for token in row]


def test_shares_and_positions_lie_within_binomial_bounds() -> None:
    num_rows = 4000
    tokens, length, segment_a = rows_of([([10] * 15, [11] * 14)] * num_rows)
    rules = rules_of("token")
    masked = mask_rows(tokens, length, segment_a, keys_of(num_rows, 1), rules)
    count = len(masked.masked_lm_ids)
    assert count == num_rows * round(0.15 * 32)
    at = np.repeat(np.cumsum(length) - length, masked.num_predictions) + masked.masked_lm_positions
    shown = masked.tokens[at]
    kept = np.count_nonzero(shown == masked.masked_lm_ids)
    is_mask = np.count_nonzero(shown == 4)
    # Five standard deviations: one false alarm in 1.7 million runs, and the seed is fixed.
    for found, share in ((is_mask, 0.8), (kept, 0.1 + 0.1 / 60)):
        assert abs(found - share * count) < 5 * np.sqrt(count * share * (1 - share))
    by_position = np.bincount(masked.masked_lm_positions, minlength=32)
    share = 1 / 29
    allowed = [position for position in range(32) if position not in (0, 16, 31)]
    deviations = np.abs(by_position[allowed] - share * count)
    assert deviations.max() < 5 * np.sqrt(count * share * (1 - share))
    random = shown[(shown != 4) & (shown != masked.masked_lm_ids)]
    assert set(random.tolist()) <= set(range(5, len(PIECES)))
    assert len(set(random.tolist())) == len(PIECES) - 5


def test_whole_words_are_masked_as_a_whole_and_never_across_segments() -> None:
    # Words of 3 pieces; B begins with continuation pieces, which belong to no word of A.
    word = [10, FIRST_CONTINUATION, FIRST_CONTINUATION + 1]
    segment_b = [FIRST_CONTINUATION + 2, FIRST_CONTINUATION + 3, *word, *word]
    tokens, length, segment_a = rows_of([(word * 4, segment_b)] * 500)
    rules = rules_of("whole_word")
    masked = mask_rows(tokens, length, segment_a, keys_of(500, 2), rules)
    words = [{1, 2, 3}, {4, 5, 6}, {7, 8, 9}, {10, 11, 12}, {14, 15}, {16, 17, 18}, {19, 20, 21}]
    ends = np.cumsum(masked.num_predictions)
    seen = set()
    for row in range(500):
        part = slice(ends[row] - masked.num_predictions[row], ends[row])
        positions = set(masked.masked_lm_positions[part].tolist())
        taken = [word for word in words if word & positions]
        assert set().union(*taken) == positions
        seen |= {min(word) for word in taken}
    assert seen == {min(word) for word in words}


def test_a_row_whose_only_words_are_too_long_gets_the_first_pieces_of_one() -> None:
    long_word = [10, *[FIRST_CONTINUATION] * 4]
    tokens, length, segment_a = rows_of([(long_word, long_word)])
    rules = rules_of("whole_word")
    assert num_predictions(length, 5).tolist() == [2]
    found = {
        tuple(mask_rows(tokens, length, segment_a, keys_of(1, seed), rules).masked_lm_positions)
        for seed in range(20)
    }
    assert found == {(1, 2), (7, 8)}


def test_a_row_without_a_token_of_text_has_nothing_to_mask() -> None:
    masked = mask_rows(
        np.array([2, 3], np.uint16), np.array([2]), np.array([2]), keys_of(1), rules_of("token")
    )
    assert masked.num_predictions.tolist() == [0]
    assert masked.tokens.tolist() == [2, 3]
