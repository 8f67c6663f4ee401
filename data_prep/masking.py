"""Masking of many rows at once: which positions, and what stands there afterwards.

Of a row of `len` tokens `min(max_predictions_per_seq, max(1, round(0.15 len)))` positions are
chosen without replacement among all but [CLS] and [SEP]; of these 80% become [MASK], 10% a random
piece, 10% stay. In whole-word mode words (a piece and the `##` pieces after it, never across
segments) are taken in random order and one that would overshoot is skipped; the 80/10/10 draw is
per piece. All random numbers come in as an array, so a row's masks depend on its own numbers alone.

Source: Devlin et al. 2018, section 3.1; google-research/bert, create_pretraining_data.py.
Differs from Google: a whole-word row in which no word fits gets the first pieces of one word rather
than no prediction; special pieces are never drawn as random pieces.

Legend: n rows, T tokens of all rows, G groups (words or tokens) of the fullest row, P masked
positions of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from data_prep.format import IntArray

MaskingKind = Literal["token", "whole_word"]

MASKED_SHARE = 0.15
MASK_SHARE = 0.8
"""Share of the chosen positions that become [MASK]."""
RANDOM_SHARE = 0.1
"""Share of the chosen positions that become a random piece."""

FloatArray = npt.NDArray[np.float32]


class MaskingRules:
    """What decides the masks besides the random numbers.

    Args:
        pieces: the vocabulary.
        special_ids: ids of the special pieces, by piece; "[MASK]" is one.
        sequence_length: the most tokens a row may have.
        max_predictions_per_seq: the most masked positions a row may have.
        masking: "token" or "whole_word".
    """

    def __init__(
        self,
        pieces: Sequence[str],
        special_ids: dict[str, int],
        sequence_length: int,
        max_predictions_per_seq: int,
        masking: MaskingKind,
    ) -> None:
        self.mask_id = special_ids["[MASK]"]
        self.random_ids = np.setdiff1d(np.arange(len(pieces)), list(special_ids.values()))
        self.is_continuation = np.array([piece.startswith("##") for piece in pieces])
        self.max_predictions_per_seq = max_predictions_per_seq
        self.masking: MaskingKind = masking
        self.group_draws = (
            sequence_length - 3 if masking == "whole_word" else max_predictions_per_seq
        )

    @property
    def draws_per_row(self) -> int:
        """Random numbers a row needs: for the order of its groups, outcomes, random pieces."""
        return self.group_draws + 2 * self.max_predictions_per_seq


class MaskedRows(NamedTuple):
    """Rows with masks applied.

    Attributes:
        tokens: as given [T].
        num_predictions: int64 [n].
        masked_lm_positions: int64 [P], positions in the row, increasing.
        masked_lm_ids: as `tokens` [P], the pieces that stood there.
    """

    tokens: IntArray
    num_predictions: IntArray
    masked_lm_positions: IntArray
    masked_lm_ids: IntArray


class _Groups(NamedTuple):
    """Groups of each row: [n, G] first candidate and number of candidates; [n] number of groups."""

    first: IntArray
    size: IntArray
    num_groups: IntArray


def num_predictions(length: IntArray, max_predictions_per_seq: int) -> IntArray:
    """Masked positions a row of `length` tokens is to have; int64 [n]."""
    wanted: IntArray = np.rint(MASKED_SHARE * length).astype(np.int64)
    return np.asarray(np.clip(wanted, 1, max_predictions_per_seq))


def default_max_predictions(sequence_length: int) -> int:
    """20 at 128 and 80 at 512, as published; elsewhere what a full row needs, and one more."""
    published = {128: 20, 512: 80}
    return published.get(sequence_length, round(MASKED_SHARE * sequence_length) + 1)


def mask_rows(
    tokens: IntArray,
    length: IntArray,
    segment_a_length: IntArray,
    draws: FloatArray,
    rules: MaskingRules,
) -> MaskedRows:
    """Chooses positions in each row and masks them.

    Args:
        tokens: unsigned [T], rows end to end: [CLS] A [SEP] B [SEP].
        length: [n], tokens of each row.
        segment_a_length: [n], tokens of A with its [CLS] and [SEP].
        draws: float32 [n, rules.draws_per_row], uniform in [0, 1).
        rules: vocabulary and numbers.

    Returns:
        The masked rows; `tokens` itself is not changed.
    """
    length, segment_a_length = length.astype(np.int64), segment_a_length.astype(np.int64)
    row_start = np.cumsum(length) - length
    if rules.masking == "whole_word":
        groups = _word_groups(tokens, length, segment_a_length, rules)
    else:
        groups = _token_groups(length)
    wanted = num_predictions(length, rules.max_predictions_per_seq)
    row, candidate = _choose(groups, wanted, draws[:, : rules.group_draws])
    position = np.where(candidate < segment_a_length[row] - 2, candidate + 1, candidate + 2)
    flat = np.sort(row_start[row] + position)
    row = np.repeat(np.arange(len(length)), np.bincount(row, minlength=len(length)))
    counts = np.bincount(row, minlength=len(length))
    rank = np.arange(len(row)) - (np.cumsum(counts) - counts)[row]
    masked = tokens.copy()
    masked[flat] = _outcomes(tokens[flat], draws[:, rules.group_draws :], row, rank, rules)
    return MaskedRows(masked, counts, flat - row_start[row], tokens[flat])


def _token_groups(length: IntArray) -> _Groups:
    """Every token but [CLS] and [SEP] is a group of its own."""
    shape = (len(length), int(length.max()) - 3)
    first = np.broadcast_to(np.arange(shape[1]), shape)
    return _Groups(first, np.broadcast_to(np.int64(1), shape), length - 3)


def _word_groups(
    tokens: IntArray, length: IntArray, segment_a_length: IntArray, rules: MaskingRules
) -> _Groups:
    """Words as groups: a group begins where a segment does, or at a piece without `##`."""
    row_start = np.cumsum(length) - length
    is_candidate = np.ones(len(tokens), bool)
    for special in (row_start, row_start + segment_a_length - 1, row_start + length - 1):
        is_candidate[special] = False
    begins = ~rules.is_continuation[tokens]
    begins[row_start + 1] = True
    begins[row_start + segment_a_length] = True
    begins = begins[is_candidate]
    row = np.repeat(np.arange(len(length)), length - 3)
    candidate = np.arange(len(row)) - (np.cumsum(length - 3) - (length - 3))[row]
    starts = np.flatnonzero(begins)
    sizes = np.diff(starts, append=len(begins))
    count = np.bincount(row[starts], minlength=len(length))
    column = np.arange(len(starts)) - (np.cumsum(count) - count)[row[starts]]
    first = np.zeros((len(length), int(count.max())), np.int64)
    size = np.zeros_like(first)
    first[row[starts], column] = candidate[starts]
    size[row[starts], column] = sizes
    return _Groups(first, size, count)


def _choose(groups: _Groups, wanted: IntArray, draws: FloatArray) -> tuple[IntArray, IntArray]:
    """Takes groups in random order (a partial Fisher-Yates shuffle) until `wanted` is full.

    Returns:
        Row and candidate of every chosen token, in no order.
    """
    rows = np.arange(len(wanted))
    order = np.tile(np.arange(groups.first.shape[1]), (len(wanted), 1))
    total = np.zeros_like(wanted)
    chosen: list[tuple[IntArray, IntArray, IntArray]] = []
    for step in range(min(order.shape[1], draws.shape[1])):
        left = np.maximum(groups.num_groups - step, 0)
        # float64: in float32 a number just below 1 times `left` could round up to `left`.
        pick = step + (draws[:, step].astype(np.float64) * left).astype(np.int64)
        group = order[rows, pick]
        order[rows, pick] = order[:, step]
        size = groups.size[rows, group]
        if step == 0:
            size = np.minimum(size, np.where(_fits_none(groups, wanted), wanted, size))
        taken = np.flatnonzero((left > 0) & (total + size <= wanted))
        total[taken] += size[taken]
        chosen.append((taken, groups.first[taken, group[taken]], size[taken]))
        if np.all((total == wanted) | (left <= 1)):
            break
    row, first, size = (np.concatenate(parts) for parts in zip(*chosen, strict=True))
    within = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    return np.repeat(row, size), np.repeat(first, size) + within


def _fits_none(groups: _Groups, wanted: IntArray) -> npt.NDArray[np.bool_]:
    """Rows whose every group is larger than `wanted`; [n]."""
    is_group = np.arange(groups.size.shape[1]) < groups.num_groups[:, None]
    smallest = np.where(is_group, groups.size, np.iinfo(np.int64).max).min(axis=1)
    return np.asarray(smallest > wanted)


def _outcomes(
    original: IntArray, draws: FloatArray, row: IntArray, rank: IntArray, rules: MaskingRules
) -> IntArray:
    """What stands at each chosen position afterwards; `rank` counts positions in their row."""
    outcome = draws[row, rank]
    piece = draws[row, rules.max_predictions_per_seq + rank].astype(np.float64)
    random_ids = rules.random_ids[(piece * len(rules.random_ids)).astype(np.int64)]
    kept_or_random = np.where(outcome < MASK_SHARE + RANDOM_SHARE, random_ids, original)
    return np.where(outcome < MASK_SHARE, rules.mask_id, kept_or_random).astype(original.dtype)
