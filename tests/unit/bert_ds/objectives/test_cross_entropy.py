"""The MLM loss: torch's cross entropy, in pieces, and no second copy of the scores."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from bert_ds.objectives import cross_entropy
from bert_ds.objectives.cross_entropy import cross_entropy_sum_in_place


@pytest.fixture(params=[7, 30, 1 << 23])
def chunk_elements(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Less than a row, three rows of ten, everything."""
    monkeypatch.setattr(cross_entropy, "_CHUNK_ELEMENTS", request.param)
    return int(request.param)


def case(dtype: torch.dtype, num_rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    scores = 4 * torch.randn(num_rows, 10, generator=generator, dtype=torch.float64)
    return scores.to(dtype), torch.randint(10, (num_rows,), generator=generator)


def gradient_of(loss_of, scores: torch.Tensor, labels: torch.Tensor):
    """Loss, and gradient of the scores, which come out of an operation as they do in a model."""
    leaf = scores.clone().requires_grad_()
    loss = loss_of(leaf * 1, labels)
    (3 * loss).backward()
    return loss.detach(), leaf.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_and_gradient_are_those_of_cross_entropy(
    dtype: torch.dtype, chunk_elements: int
) -> None:
    scores, labels = case(dtype)
    loss, gradient = gradient_of(cross_entropy_sum_in_place, scores, labels)
    expected = gradient_of(lambda s, t: F.cross_entropy(s, t, reduction="sum"), scores, labels)
    assert loss.dtype == dtype
    torch.testing.assert_close(loss, expected[0])
    torch.testing.assert_close(gradient, expected[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype, chunk_elements: int) -> None:
    scores, labels = case(dtype)
    loss, gradient = gradient_of(cross_entropy_sum_in_place, scores, labels)
    exact, of_exact = gradient_of(cross_entropy_sum_in_place, scores.double(), labels)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=1e-6)
    assert gradient.dtype == dtype
    torch.testing.assert_close(gradient, of_exact.to(dtype))  # rounded once


def test_large_scores_do_not_overflow() -> None:
    scores = torch.tensor([[3e4, 0.0], [-3e4, 0.0]], dtype=torch.float16)
    loss, gradient = gradient_of(cross_entropy_sum_in_place, scores, torch.tensor([1, 1]))
    assert loss.item() == pytest.approx(3e4, rel=1e-3)
    assert gradient.tolist() == [[3.0, -3.0], [0.0, 0.0]]


def test_no_masked_position_is_no_loss() -> None:
    scores, labels = case(torch.float32, num_rows=0)
    loss, gradient = gradient_of(cross_entropy_sum_in_place, scores, labels)
    assert loss.item() == 0.0
    assert gradient.shape == (0, 10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_gradient_lies_where_the_scores_lay(dtype: torch.dtype) -> None:
    scores, labels = case(dtype)
    leaf = scores.clone().requires_grad_()
    logits = leaf * 1
    found = []
    logits.register_hook(lambda gradient: found.append(gradient.data_ptr()))
    cross_entropy_sum_in_place(logits, labels).backward()
    assert found == [logits.data_ptr()]


def test_a_second_backward_pass_is_an_error_and_never_a_wrong_gradient() -> None:
    scores, labels = case(torch.float32)
    loss = cross_entropy_sum_in_place(scores.clone().requires_grad_() * 1, labels)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
