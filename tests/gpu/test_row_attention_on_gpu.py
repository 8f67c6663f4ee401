"""Attention of rows end to end on a GPU against the reference in float64 on the CPU."""

from __future__ import annotations

import pytest
import torch

from bert_ds.model.row_attention import attend, nested_attend, plain_attend
from bert_ds.model.row_bounds import Rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]

LENGTHS = [512, 2, 130, 512, 77, 1]


def result_and_gradients(attention, inputs, rows: Rows, p: float) -> list[torch.Tensor]:
    leaves = [each.clone().requires_grad_() for each in inputs]
    result = attention(*leaves, rows, p)
    result.sum().backward()
    return [result.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("attention", [attend, nested_attend])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_results_and_gradients_are_those_of_the_reference(attention, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    shape = (sum(LENGTHS), 16, 64)
    inputs = [torch.randn(shape, generator=generator).to(dtype) for _ in range(3)]
    ends = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    expected = result_and_gradients(
        plain_attend, [each.double() for each in inputs], Rows(ends, 512), 0.0
    )
    rows = Rows(ends.cuda(), 512)
    found = result_and_gradients(attention, [each.cuda() for each in inputs], rows, 0.0)
    tolerance = {torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.float32: 5e-4}[dtype]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double().cpu(), theirs, rtol=tolerance, atol=tolerance)


def test_dropout_keeps_the_expectation_and_repeats_with_its_seed() -> None:
    ends = torch.tensor([0, 512, 1024], dtype=torch.int32, device="cuda")
    query = torch.zeros(1024, 16, 64, dtype=torch.float16, device="cuda")
    value = torch.ones_like(query)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(attend(query, query, value, Rows(ends, 512), 0.1))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert results[0].float().mean().item() == pytest.approx(1.0, abs=2e-3)
    assert results[0].float().std().item() > 1e-3
