"""Attention within rows: by hand, against the reference and torch's own, over random lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_ds.model.row_attention import attend, nested_attend, plain_attend
from bert_ds.model.row_bounds import Rows


def rows_of(lengths: Sequence[int]) -> Rows:
    ends = torch.tensor([0, *lengths]).cumsum(0).int()
    return Rows(ends, max(lengths))


def heads(num_tokens: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Query, key and value of 3 heads of 4."""
    return [torch.randn(num_tokens, 3, 4, dtype=dtype, requires_grad=True) for _ in range(3)]


def result_and_gradients(attention, inputs, rows: Rows, p: float) -> list[torch.Tensor]:
    for each in inputs:
        each.grad = None
    result = attention(*inputs, rows, p)
    weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view(result.shape)
    (result * weights).sum().backward()
    return [result.detach(), *(each.grad for each in inputs)]


def test_a_row_of_two_by_hand() -> None:
    """One head of one: scores 1 x [2, 0] and 3 x [2, 0], values 10 and 20; another row follows."""
    query, key = torch.tensor([1.0, 3.0, 5.0]), torch.tensor([2.0, 0.0, 7.0])
    value = torch.tensor([10.0, 20.0, 40.0])
    result = attend(*(each.view(3, 1, 1) for each in (query, key, value)), rows_of([2, 1]), 0.0)
    share = [math.exp(2) / (math.exp(2) + 1), math.exp(6) / (math.exp(6) + 1)]
    expected = [10 * share[0] + 20 * (1 - share[0]), 10 * share[1] + 20 * (1 - share[1]), 40.0]
    assert result.flatten().tolist() == pytest.approx(expected, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.sampled_from([0.0, 0.3]))
def test_results_and_gradients_are_those_of_the_reference(lengths: list[int], p: float) -> None:
    inputs, rows = heads(sum(lengths)), rows_of(lengths)
    torch.manual_seed(1)
    found = result_and_gradients(attend, inputs, rows, p)
    torch.manual_seed(1)  # both draw a seed a row
    expected = result_and_gradients(plain_attend, inputs, rows, p)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_way_of_gpus_is_the_same_attention() -> None:
    inputs, rows = heads(31), rows_of([2, 20, 9])
    found = result_and_gradients(nested_attend, inputs, rows, 0.0)
    expected = result_and_gradients(plain_attend, inputs, rows, 0.0)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_finite_differences() -> None:
    def dropped(query, key, value):
        torch.manual_seed(2)
        return attend(query, key, value, rows_of([3, 1, 4]), 0.25)

    assert torch.autograd.gradcheck(dropped, heads(8, torch.float64))


def test_rows_do_not_see_each_other_and_empty_rows_are_nothing() -> None:
    inputs, rows = heads(12), rows_of([5, 0, 7, 0])
    whole = attend(*inputs, rows, 0.0)
    parts = [
        attend(*(each[start:end] for each in inputs), rows_of([end - start]), 0.0)
        for start, end in ((0, 5), (5, 12))
    ]
    assert torch.equal(whole, torch.cat(parts))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_the_reference_rounded(dtype: torch.dtype) -> None:
    inputs, rows = [each.detach().to(dtype) for each in heads(20)], rows_of([13, 7])
    for each in inputs:
        each.requires_grad_()
    found = result_and_gradients(attend, inputs, rows, 0.0)
    exact = [each.detach().double().requires_grad_() for each in inputs]
    expected = result_and_gradients(plain_attend, exact, rows, 0.0)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        # probabilities and products are rounded to 8 (11) bits a few times
        torch.testing.assert_close(ours.double(), theirs, rtol=0.05, atol=0.03)


def test_the_operations_are_well_formed_for_the_compiler() -> None:
    inputs, rows = heads(9), rows_of([4, 5])
    arguments = (*inputs, rows.cu_seqlens, rows.max_seqlen, 0.1)
    torch.library.opcheck(
        torch.ops.bert_ds.row_attention,
        arguments,
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )
    gradient, (query, key, value) = torch.ones(9, 3, 4), (each.detach() for each in inputs)
    _, probabilities, keep = torch.ops.bert_ds.row_attention(*arguments)
    torch.library.opcheck(
        torch.ops.bert_ds.row_attention_backward,
        (gradient, query, key, value, rows.cu_seqlens, probabilities.detach(), keep, 0.1),
        test_utils=("test_schema", "test_faketensor"),
    )
