"""Dropout on CPUs: probability, scale, gradients, seeds, dtypes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bert_ds.model.cpu import dropout as dropout_module
from bert_ds.model.dropout import Dropout, dropout
from data_prep.contract.compiled import plain

NUM = 1 << 20


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_of_zeros_is_p_and_what_stays_is_scaled_to_match(p: float) -> None:
    torch.manual_seed(1)
    result = dropout(torch.ones(NUM), p)
    zeros = int((result == 0).sum())
    assert abs(zeros - p * NUM) < 5 * math.sqrt(NUM * p * (1 - p))
    kept = result[result != 0]
    assert kept.min() == kept.max() == pytest.approx(1 / (1 - p), rel=2e-4)
    rounded = round(p * 65536) / 65536
    assert kept[0].item() == pytest.approx(1 / (1 - rounded), rel=1e-7)


def test_neighbours_and_calls_are_independent() -> None:
    torch.manual_seed(2)
    first, second = (dropout(torch.ones(NUM), 0.5) != 0 for _ in range(2))
    bound = 5 * math.sqrt(NUM) / 2
    assert abs(int((first == second).sum()) - NUM / 2) < bound
    for distance in (1, 2, 3, 4, 5, 64, 768):  # four elements share a draw
        assert abs(int((first[distance:] == first[:-distance]).sum()) - NUM / 2) < bound


def test_the_seed_alone_decides_whatever_the_threads() -> None:
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(3)
        results.append(dropout(torch.ones(1000, 7), 0.1))
    torch.manual_seed(4)
    assert torch.equal(*results)
    assert not torch.equal(results[0], dropout(torch.ones(1000, 7), 0.1))


def test_which_elements_stay_is_the_known_answer() -> None:
    """SplitMix64 of a state 0 begins with E220A8397B1DCDAF (Steele et al.'s reference code)."""
    assert int(dropout_module._mixed(np.uint64(0), 1)) == 0xE220A8397B1DCDAF


def test_the_compiled_kernel_is_the_one_written_down() -> None:
    for size in (1, 4, 11):
        found, expected = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
        dropout_module._draw(np.uint64(5), 30000, found)
        with np.errstate(over="ignore"):
            plain(dropout_module._draw)(np.uint64(5), 30000, expected)
        assert found.tolist() == expected.tolist()
        source = np.arange(1, size + 1, dtype=np.float32)
        target, keep = np.zeros(size, np.float32), np.zeros(size, np.bool_)
        scale = np.float32(2)
        dropout_module._draw_and_drop(np.uint64(5), 30000, scale, source, target, keep)
        assert keep.tolist() == expected.tolist()
        assert target.tolist() == np.where(expected, 2 * source, 0).tolist()


def test_gradients_go_where_the_elements_stayed() -> None:
    torch.manual_seed(6)
    x = torch.randn(50, 30, requires_grad=True)
    result = dropout(x, 0.3)
    weights = torch.randn(50, 30)
    (result * weights).sum().backward()
    kept = result != 0
    scale = 65536 / (65536 - round(0.3 * 65536))
    torch.testing.assert_close(x.grad, torch.where(kept, weights * scale, 0.0))


def test_what_is_not_contiguous_is_dropped_alike() -> None:
    x = torch.randn(40, 60).t()
    torch.manual_seed(7)
    expected = dropout(x.contiguous(), 0.2)
    torch.manual_seed(7)
    assert torch.equal(dropout(x, 0.2), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_every_precision_keeps_the_same_elements(dtype: torch.dtype) -> None:
    torch.manual_seed(8)
    expected = dropout(torch.ones(999), 0.4) != 0
    torch.manual_seed(8)
    x = torch.ones(999, dtype=dtype, requires_grad=True)
    result = dropout(x, 0.4)
    assert result.dtype == dtype
    assert torch.equal(result != 0, expected)
    result.sum().backward()
    assert torch.equal(x.grad, result)


def test_nothing_is_dropped_outside_training_or_with_p_0() -> None:
    x = torch.randn(100)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0).train()(x) is x
    assert not torch.equal(Dropout(0.5).train()(x), x)
    assert repr(Dropout(0.5)) == "Dropout(p=0.5)"


def test_a_dropped_infinity_is_zero() -> None:
    torch.manual_seed(9)
    result = dropout(torch.full((1000,), math.inf), 0.5)
    assert set(result.tolist()) == {0.0, math.inf}


def test_the_operations_are_well_formed_for_the_compiler() -> None:
    x = torch.randn(6, 5, requires_grad=True)
    torch.library.opcheck(
        torch.ops.bert_ds.dropout,
        (x, 0.2),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )
    torch.library.opcheck(torch.ops.bert_ds.dropout_backward, (x.detach(), x.detach() > 0, 0.2))
