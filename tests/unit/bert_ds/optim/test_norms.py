"""Sums of squares of large and of odd-sized tensors."""

from __future__ import annotations

import math

import pytest
import torch

from bert_ds.optim.norms import ROW, sum_of_squares


def test_sum_of_squares_is_right_at_the_size_of_bert_larges_embeddings() -> None:
    # Exact in float32, and its square as well: the true sum is known without summing.
    tensor = torch.full((30_522, 1_024), 2.0**-6 * 1.25)
    expected = 30_522 * 1_024 * (2.0**-6 * 1.25) ** 2
    assert sum_of_squares(tensor).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("num_elements", [0, 1, ROW - 1, ROW, ROW + 1, 3 * ROW + 17])
def test_sum_of_squares_covers_whole_rows_and_the_rest(num_elements: int) -> None:
    tensor = torch.randn(num_elements, generator=torch.Generator().manual_seed(num_elements))
    total = sum_of_squares(tensor)
    assert total.dtype == torch.float64
    assert total.item() == pytest.approx(math.fsum(x * x for x in tensor.tolist()), rel=1e-6)


def test_sum_of_squares_of_a_view_that_is_not_contiguous() -> None:
    tensor = torch.arange(3000, dtype=torch.float32).view(50, 60).t()
    assert sum_of_squares(tensor).item() == pytest.approx(sum(i * i for i in range(3000)), rel=1e-6)


def test_sum_of_squares_of_float64_keeps_float64() -> None:
    tensor = torch.full((2 * ROW + 1,), 1.0 / 3.0, dtype=torch.float64)
    assert sum_of_squares(tensor).item() == pytest.approx((2 * ROW + 1) / 9.0, rel=1e-13)
