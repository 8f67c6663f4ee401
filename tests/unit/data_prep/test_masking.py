"""Masking: worked by hand, its rules for any row, and its shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.masking import (
    MaskingKind,
    MaskingRules,
    default_max_predictions,
    mask_rows,
    num_predictions,
)

SPECIAL = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
PIECES = [*SPECIAL, *(f"w{i}" for i in range(40)), *(f"##c{i}" for i in range(20))]
FIRST_CONTINUATION = 45


def rules_of(masking: MaskingKind, sequence_length: int = 32, most: int = 5) -> MaskingRules:
    return MaskingRules(PIECES, SPECIAL, sequence_length, most, masking)


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
    # [CLS] 10 11 [SEP] 12 13 14 [SEP] is 8 tokens: one prediction. Its number 0.5 takes candidate
    # floor(0.5 * 5) = 2, the first of B: position 4. Outcome 0.85 is "random", and 0.5 takes the
    # piece in the middle of the 60 that are not special: 5 + 30.
    tokens, length, segment_a = rows_of([([10, 11], [12, 13, 14])])
    rules = rules_of("token", sequence_length=16, most=3)
    draws = np.array([[0.5, 0, 0, 0.85, 0, 0, 0.5, 0, 0]], np.float32)
    masked = mask_rows(tokens, length, segment_a, draws, rules)
    assert masked.tokens.tolist() == [2, 10, 11, 3, 35, 13, 14, 3]
    assert masked.masked_lm_positions.tolist() == [4]
    assert masked.masked_lm_ids.tolist() == [12]
    assert tokens[4] == 12
    for outcome, expected in ((0.79, 4), (0.95, 12)):
        draws[0, 3] = outcome
        assert mask_rows(tokens, length, segment_a, draws, rules).tokens[4] == expected


segment = st.lists(st.integers(5, len(PIECES) - 1), min_size=1, max_size=14)


@pytest.mark.parametrize("masking", ["token", "whole_word"])
@settings(max_examples=60, deadline=None)
@given(segments=st.lists(st.tuples(segment, segment), min_size=1, max_size=6), seed=st.integers(0))
def test_any_rows_keep_the_rules(
    masking: MaskingKind, segments: list[tuple[list[int], list[int]]], seed: int
) -> None:
    tokens, length, segment_a = rows_of(segments)
    rules = rules_of(masking)
    shape = (len(length), rules.draws_per_row)
    draws = np.random.Generator(np.random.Philox(key=seed)).random(shape, np.float32)
    masked = mask_rows(tokens, length, segment_a, draws, rules)
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
    tokens: list[int], segment_a: int, draws: list[float], rules: MaskingRules
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
    wanted = min(rules.max_predictions_per_seq, max(1, round(0.15 * len(tokens))))
    if all(len(group) > wanted for group in groups):
        groups = [group[:wanted] for group in groups]
        groups = groups[int(draws[0] * len(groups)) :][:1]
    taken: list[int] = []
    for step in range(min(len(groups), rules.group_draws)):
        pick = step + int(draws[step] * (len(groups) - step))
        groups[step], groups[pick] = groups[pick], groups[step]
        if len(taken) + len(groups[step]) <= wanted:
            taken += groups[step]
    masked = list(tokens)
    for rank, position in enumerate(sorted(taken)):
        outcome = draws[rules.group_draws + rank]
        piece = draws[rules.group_draws + rules.max_predictions_per_seq + rank]
        if outcome < 0.8:
            masked[position] = rules.mask_id
        elif outcome < 0.9:
            masked[position] = int(rules.random_ids[int(piece * len(rules.random_ids))])
    return masked, sorted(taken)


@pytest.mark.parametrize("masking", ["token", "whole_word"])
@settings(max_examples=80, deadline=None)
@given(segments=st.lists(st.tuples(segment, segment), min_size=1, max_size=5), seed=st.integers(0))
def test_array_work_equals_masking_token_by_token(
    masking: MaskingKind, segments: list[tuple[list[int], list[int]]], seed: int
) -> None:
    tokens, length, segment_a = rows_of(segments)
    rules = rules_of(masking)
    shape = (len(length), rules.draws_per_row)
    draws = np.random.Generator(np.random.Philox(key=seed)).random(shape, np.float32)
    masked = mask_rows(tokens, length, segment_a, draws, rules)
    ends = np.cumsum(length)
    expected_tokens, expected_positions = [], []
    for row, end in enumerate(ends):
        one = tokens[end - length[row] : end].tolist()
        plain = masked_plainly(one, int(segment_a[row]), draws[row].tolist(), rules)
        expected_tokens += plain[0]
        expected_positions += plain[1]
    assert masked.tokens.tolist() == expected_tokens
    assert masked.masked_lm_positions.tolist() == expected_positions


def test_a_row_does_not_depend_on_the_rows_around_it() -> None:
    tokens, length, segment_a = rows_of([([10, 50, 11], [12] * 9), ([13], [14]), ([15] * 9, [16])])
    for masking in ("token", "whole_word"):
        rules = rules_of(masking)
        draws = np.random.default_rng(0).random((3, rules.draws_per_row), np.float32)
        together = mask_rows(tokens, length, segment_a, draws, rules)
        ends = np.cumsum(length)
        alone = [
            mask_rows(
                tokens[ends[i] - length[i] : ends[i]],
                length[i : i + 1],
                segment_a[i : i + 1],
                draws[i : i + 1],
                rules,
            ).tokens.tolist()
            for i in range(3)
        ]
        assert together.tokens.tolist() == [token for row in alone for token in row]


def test_shares_and_positions_lie_within_binomial_bounds() -> None:
    num_rows = 4000
    tokens, length, segment_a = rows_of([([10] * 15, [11] * 14)] * num_rows)
    rules = rules_of("token")
    draws = np.random.default_rng(1).random((num_rows, rules.draws_per_row), np.float32)
    masked = mask_rows(tokens, length, segment_a, draws, rules)
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
    draws = np.random.default_rng(2).random((500, rules.draws_per_row), np.float32)
    masked = mask_rows(tokens, length, segment_a, draws, rules)
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
    draws = np.zeros((1, rules.draws_per_row), np.float32)
    masked = mask_rows(tokens, length, segment_a, draws, rules)
    assert num_predictions(length, 5).tolist() == [2]
    assert masked.masked_lm_positions.tolist() == [1, 2]
