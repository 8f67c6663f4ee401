"""Masking of many rows: which positions, and what stands there afterwards.

Of a row of `len` tokens `min(max_predictions_per_seq, max(1, round(0.15 len)))` positions are
chosen without replacement among all but [CLS] and [SEP]; of these 80% become [MASK], 10% a random
piece, 10% stay. In whole-word mode words (a piece and the `##` pieces after it, never across
segments) are taken in random order and one that would overshoot is skipped; the 80/10/10 draw is
per piece. A row's masks depend on its key alone, so rows may be masked in any order and by anyone,
before training or during it.

Source: Devlin et al. 2018, section 3.1; google-research/bert, create_pretraining_data.py.
Differs from Google: a whole-word row in which no word fits gets the first pieces of one word rather
than no prediction; special pieces are never drawn as random pieces.

Legend: n rows, T tokens of all rows, P masked positions of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from data_prep.contract.compiled import compiled, integer
from data_prep.contract.format import IntArray, UnsignedArray
from data_prep.contract.randomness import STREAM_WORDS, WordArray, fill_words

MaskingKind = Literal["token", "whole_word"]
"""What is masked; a preparation may also leave it ("none") to the reader."""

MASKED_SHARE = 0.15
MASK_SHARE = 0.8
"""Share of the chosen positions that become [MASK]."""
RANDOM_SHARE = 0.1
"""Share of the chosen positions that become a random piece."""

_WORD_VALUES = 2.0**32  # what a random word is below
_SHIFT = np.uint64(32)


class MaskingRules:
    """What decides the masks besides the keys of the rows.

    Args:
        pieces: the vocabulary.
        special_ids: ids of the special pieces, by piece; "[MASK]" is one.
        max_predictions_per_seq: the most masked positions a row may have.
        masking: "token" or "whole_word".
    """

    def __init__(
        self,
        pieces: Sequence[str],
        special_ids: dict[str, int],
        max_predictions_per_seq: int,
        masking: MaskingKind,
    ) -> None:
        self.mask_id = special_ids["[MASK]"]
        self.random_ids = np.setdiff1d(np.arange(len(pieces)), list(special_ids.values()))
        self.is_continuation = np.array([piece.startswith("##") for piece in pieces])
        self.max_predictions_per_seq = max_predictions_per_seq
        self.masking: MaskingKind = masking


class MaskedRows(NamedTuple):
    """Rows with masks applied."""

    tokens: UnsignedArray
    """As given [T]."""
    num_predictions: IntArray
    """int64 [n]."""
    masked_lm_positions: IntArray
    """int64 [P], positions in the row, increasing."""
    masked_lm_ids: UnsignedArray
    """As `tokens` [P], the pieces that stood there."""


def num_predictions(length: IntArray, max_predictions_per_seq: int) -> IntArray:
    """Return how many positions rows of `length` tokens are to have masked; int64 [n]."""
    wanted: IntArray = np.rint(MASKED_SHARE * length).astype(np.int64)
    return np.asarray(np.clip(wanted, 1, max_predictions_per_seq))


def default_max_predictions(sequence_length: int) -> int:
    """Return 20 at 128 and 80 at 512, as published; elsewhere one more than a full row needs."""
    published = {128: 20, 512: 80}
    return published.get(sequence_length, round(MASKED_SHARE * sequence_length) + 1)


def mask_rows(
    tokens: UnsignedArray,
    length: npt.NDArray[Any],
    segment_a_length: npt.NDArray[Any],
    row_keys: WordArray,
    rules: MaskingRules,
) -> MaskedRows:
    """Choose positions in each row and mask them.

    Args:
        tokens: unsigned [T], rows end to end: [CLS] A [SEP] B [SEP], or [CLS] A [SEP].
        length: [n], tokens of each row.
        segment_a_length: [n], tokens of A with its [CLS] and [SEP]; `length` where there is no B.
        row_keys: uint64 [n], whose random numbers a row gets.
        rules: vocabulary and numbers.

    Returns:
        The masked rows; `tokens` itself is not changed.
    """
    length, segment_a_length = length.astype(np.int64), segment_a_length.astype(np.int64)
    most = num_predictions(length, rules.max_predictions_per_seq)
    masked = tokens.copy()
    counts = np.zeros(len(length), np.int64)
    positions = np.empty(int(most.sum()), np.int64)
    originals = np.empty(len(positions), tokens.dtype)
    total = _mask_all(
        masked,
        length,
        segment_a_length,
        row_keys,
        most,
        rules.mask_id,
        rules.random_ids,
        rules.is_continuation,
        rules.masking == "whole_word",
        counts,
        positions,
        originals,
    )
    return MaskedRows(masked, counts, positions[:total], originals[:total])


@compiled
def _mask_all(
    tokens: UnsignedArray,
    length: IntArray,
    segment_a_length: IntArray,
    row_keys: WordArray,
    wanted: IntArray,
    mask_id: int,
    random_ids: IntArray,
    is_continuation: npt.NDArray[np.bool_],
    is_whole_word: bool,
    counts: IntArray,
    positions: IntArray,
    originals: UnsignedArray,
) -> int:
    """Mask `tokens` in place and fill the last three arrays; return how many positions."""
    longest = int(length.max()) if len(length) else 0
    words = np.empty(3 * longest + 8, np.uint64)
    stream = np.empty(STREAM_WORDS, np.uint64)
    is_chosen = np.empty(longest, np.bool_)
    order, first = np.empty(longest, np.int64), np.empty(longest + 1, np.int64)
    start = total = 0
    for row in range(len(length)):
        of_a = segment_a_length[row] - 2
        candidates = length[row] - (2 if of_a == length[row] - 2 else 3)
        want = min(wanted[row], candidates)
        is_chosen[:candidates] = False
        if is_whole_word:
            groups = _find_words(tokens, start, of_a, candidates, is_continuation, first)
            used = candidates
            fill_words(stream, row_keys[row], words, used + 2 * want)
            _choose_words(first, groups, want, words, order, is_chosen)
        else:
            used = want
            fill_words(stream, row_keys[row], words, used + 2 * want)
            _choose_tokens(candidates, want, words, order, is_chosen)
        before = total
        for candidate in range(candidates):
            if not is_chosen[candidate]:
                continue
            position = candidate + 1 if candidate < of_a else candidate + 2
            positions[total] = position
            originals[total] = tokens[start + position]
            outcome, piece = words[used], words[used + want]
            if outcome < MASK_SHARE * _WORD_VALUES:
                tokens[start + position] = mask_id
            elif outcome < (MASK_SHARE + RANDOM_SHARE) * _WORD_VALUES:
                drawn = integer((piece * np.uint64(len(random_ids))) >> _SHIFT)
                tokens[start + position] = random_ids[drawn]
            used += 1
            total += 1
        counts[row] = total - before
        start += length[row]
    return total


@compiled
def _choose_tokens(
    candidates: int,
    want: int,
    words: WordArray,
    order: IntArray,
    is_chosen: npt.NDArray[np.bool_],
) -> None:
    """Mark `want` of the candidates by a Fisher-Yates shuffle that stops early."""
    for index in range(candidates):
        order[index] = index
    for step in range(want):
        pick = step + integer((words[step] * np.uint64(candidates - step)) >> _SHIFT)
        is_chosen[order[pick]] = True
        order[pick] = order[step]


@compiled
def _find_words(
    tokens: UnsignedArray,
    start: int,
    of_a: int,
    candidates: int,
    is_continuation: npt.NDArray[np.bool_],
    first: IntArray,
) -> int:
    """Return words of a row: one begins where a segment does, or at a piece without `##`.

    Returns:
        How many; `first` gets the first candidate of each, and the number of candidates.
    """
    groups = 0
    for candidate in range(candidates):
        position = start + (candidate + 1 if candidate < of_a else candidate + 2)
        if candidate == 0 or candidate == of_a or not is_continuation[tokens[position]]:
            first[groups] = candidate
            groups += 1
    first[groups] = candidates
    return groups


@compiled
def _choose_words(
    first: IntArray,
    groups: int,
    want: int,
    words: WordArray,
    order: IntArray,
    is_chosen: npt.NDArray[np.bool_],
) -> None:
    """Mark words in random order while they fit into `want`; where none does, part of one."""
    smallest = first[groups]
    for index in range(groups):
        order[index] = index
        smallest = min(smallest, first[index + 1] - first[index])
    taken = 0
    for step in range(groups):
        pick = step + integer((words[step] * np.uint64(groups - step)) >> _SHIFT)
        group = order[pick]
        order[pick] = order[step]
        size = first[group + 1] - first[group]
        if smallest > want:
            size = want
        if taken + size <= want:
            is_chosen[first[group] : first[group] + size] = True
            taken += size
        if taken == want:
            return
