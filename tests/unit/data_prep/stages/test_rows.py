"""Rows out of pairs, worked by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data_prep.contract.format import Block, concatenate_blocks, select_rows, spread
from data_prep.stages.pairs import Pairs
from data_prep.stages.rows import assemble


def pairs_of(spans: list[tuple[int, int, int, int]]) -> Pairs:
    """Pairs out of start and length of A and B."""
    columns = np.array(spans, np.int64).T
    count = len(spans)
    is_divided = np.zeros(count, np.bool_)
    return Pairs(*columns, np.zeros(count, np.uint8), is_divided, np.zeros(count, np.uint64))


def test_rows_are_cls_a_sep_b_sep() -> None:
    ids = np.arange(10, 20, dtype=np.uint16)
    rows = assemble(ids, pairs_of([(0, 2, 2, 3), (8, 1, 3, 1)]), cls_id=2, sep_id=3)
    assert rows.tokens.tolist() == [2, 10, 11, 3, 12, 13, 14, 3, 2, 18, 3, 13, 3]
    assert rows.tokens.dtype == np.uint16
    assert rows.length.tolist() == [8, 5]
    assert rows.segment_a_length.tolist() == [4, 3]


def test_rows_of_one_segment_are_cls_a_sep() -> None:
    ids = np.arange(10, 20, dtype=np.uint32)
    rows = assemble(ids, pairs_of([(0, 2, 2, 0), (8, 1, 9, 0)]), cls_id=2, sep_id=3)
    assert rows.tokens.tolist() == [2, 10, 11, 3, 2, 18, 3]
    assert rows.tokens.dtype == np.uint32
    assert rows.length.tolist() == rows.segment_a_length.tolist() == [4, 3]


def test_spread_lists_the_indices_of_spans() -> None:
    assert spread(np.array([5, 0, 9]), np.array([2, 0, 3])).tolist() == [5, 6, 9, 10, 11]


def test_select_rows_moves_whole_rows_with_their_masks() -> None:
    block = Block(
        tokens=np.array([2, 5, 3, 6, 3, 2, 7, 8, 3, 9, 3], np.uint16),
        length=np.array([5, 6], np.uint16),
        segment_a_length=np.array([3, 4], np.uint16),
        num_predictions=np.array([1, 2], np.uint8),
        masked_lm_positions=np.array([1, 1, 4], np.uint8),
        masked_lm_ids=np.array([5, 17, 19], np.uint16),
        pair_label=np.array([0, 1], np.uint8),
        pair_label_name="next_sentence_label",
    )
    swapped = select_rows(block, np.array([1, 0]))
    assert swapped.tokens.tolist() == [2, 7, 8, 3, 9, 3, 2, 5, 3, 6, 3]
    assert swapped.masked_lm_positions.tolist() == [1, 4, 1]
    assert swapped.masked_lm_ids.tolist() == [17, 19, 5]
    assert swapped.pair_label.tolist() == [1, 0]
    only = select_rows(block, np.array([0]))
    assert only.tokens.tolist() == [2, 5, 3, 6, 3]
    assert len(only) == 1
    assert concatenate_blocks([only, swapped]).tokens.tolist() == [
        *only.tokens.tolist(),
        *swapped.tokens.tolist(),
    ]


@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=12), data=st.data())
def test_spread_equals_slicing(lengths: list[int], data: st.DataObject) -> None:
    rows = np.array(data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=10)), np.int64)
    sizes = np.array(lengths)
    flat = np.arange(sizes.sum())
    pieces = np.split(flat, np.cumsum(lengths)[:-1])
    starts = np.cumsum(sizes) - sizes
    expected = [value for row in rows for value in pieces[row].tolist()]
    assert flat[spread(starts[rows], sizes[rows])].tolist() == expected
