"""Compiled copies of rows against the plain way of `data_prep.contract.format`."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_ds.data import row_copy
from bert_ds.data.row_copy import Window, cut_rows, take_rows
from data_prep.contract.compiled import plain
from data_prep.contract.format import Block, concatenate_blocks, select_rows
from tests.support.datasets import random_block


def assert_same(found: Block, expected: Block) -> None:
    for field in dataclasses.fields(Block):
        a, b = getattr(found, field.name), getattr(expected, field.name)
        np.testing.assert_array_equal(a, b, err_msg=field.name)
        if isinstance(b, np.ndarray):
            assert a.dtype == b.dtype, field.name


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
    is_masked=st.booleans(),
    is_paired=st.booleans(),
)
def test_rows_of_several_windows_are_those_of_the_plain_way(
    sizes: list[int], seed: int, is_masked: bool, is_paired: bool
) -> None:
    rng = np.random.default_rng(seed)
    blocks = [
        random_block(size, 300, 999, seed + i, is_masked=is_masked, is_paired=is_paired)
        for i, size in enumerate(sizes)
    ]
    rows = [rng.integers(0, size, rng.integers(1, 2 * size + 1)) for size in sizes]
    taken = take_rows((Window(b), r) for b, r in zip(blocks, rows, strict=True))
    plainly = [select_rows(b, r) for b, r in zip(blocks, rows, strict=True)]
    assert_same(taken, concatenate_blocks(plainly))


def test_the_compiled_copy_is_the_one_that_is_written() -> None:
    values, starts = np.arange(20, dtype=np.uint16), np.array([0, 3, 3, 10, 20])
    rows = np.array([3, 0, 1, 2, 0])
    for function in (row_copy._copy_spans, plain(row_copy._copy_spans)):
        taken = np.zeros(25, np.uint16)
        assert function(values, starts, rows, taken, 1) == 1 + 10 + 3 + 7 + 3
        expected = [0, *range(10, 20), *range(3), *range(3, 10), *range(3), 0]
        assert taken.tolist() == expected


@settings(deadline=None)
@given(num_rows=st.integers(1, 20), size=st.integers(1, 25), is_paired=st.booleans())
def test_pieces_are_the_rows_in_order(num_rows: int, size: int, is_paired: bool) -> None:
    block = random_block(num_rows, 50, 99, 1, is_paired=is_paired)
    pieces = cut_rows(block, size)
    assert [len(piece) for piece in pieces[:-1]] == [size] * (len(pieces) - 1)
    assert_same(concatenate_blocks(pieces), block)
    for number, piece in enumerate(pieces):
        rows = np.arange(number * size, min((number + 1) * size, num_rows))
        assert_same(piece, select_rows(block, rows))
