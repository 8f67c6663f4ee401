"""Every fast kernel is the plain one, to rounding, on whole and on split parameters."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bert_ds.errors import ConfigError
from bert_ds.optim import Lamb
from bert_ds.optim.kernels.apex import ApexKernel
from bert_ds.optim.kernels.base import ApplyUpdate, FlatTensors, Kernel, StepInputs
from bert_ds.optim.kernels.cpu import CpuKernel
from bert_ds.optim.kernels.plain import PlainKernel
from bert_ds.optim.layout import Fragment
from bert_ds.optim.rule import WEIGHT
from tests.support.lamb_cases import (
    CASES,
    NUM_STEPS,
    SIZES,
    StandInForAmpC,
    compare,
    padding_is_untouched,
    rule_at,
    take_steps,
)

ROOT = Path(__file__).parents[5]
TOLERANCE = 3e-6
"""Relative to the norm of each tensor. Float32 has 6e-8; the order of operations differs. Measured:
1.4e-6
at most, in a moment of one element where gradients cancel; 1.5e-7 in tensors of many."""
APEX_CASES = sorted(set(CASES) - {"uncorrected"})
"""apex corrects always; the choice of kernels leaves it out where that is not wanted."""


@pytest.mark.parametrize("is_split", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("case", CASES)
def test_the_kernel_in_c(case: str, is_split: bool) -> None:
    assert compare(CpuKernel(), PlainKernel(), is_split=is_split, **CASES[case]) < TOLERANCE


@pytest.mark.parametrize("is_split", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("case", APEX_CASES)
def test_the_calls_of_apex(case: str, is_split: bool) -> None:
    amp_c = StandInForAmpC()
    assert compare(ApexKernel(amp_c), PlainKernel(), is_split=is_split, **CASES[case]) < TOLERANCE
    assert amp_c.steps == list(range(NUM_STEPS))  # it counts step + 1


def test_apex_refuses_what_it_would_compute_wrongly() -> None:
    with pytest.raises(ConfigError, match="apex cannot compute them"):
        take_steps(ApexKernel(StandInForAmpC()), is_split=False, **CASES["uncorrected"])


def test_the_kernel_in_triton_under_its_interpreter() -> None:
    """In a process of its own: Triton decides at import whether it interprets.

    A block takes the interpreter milliseconds, so that there are four in the largest tensor; two of
    them are added up at a time, for more than one turn.
    """
    script = (
        "import json\nfrom tests.support import lamb_cases\n"
        "from tests.support.lamb_cases import *\n"
        "from bert_ds.optim.kernels import triton_lamb\n"
        "from bert_ds.optim.kernels.plain import PlainKernel\n"
        "from bert_ds.optim.kernels.triton_lamb import TritonKernel\n"
        "assert SIZES[-2:] == (70_000, 300_001) and triton_lamb.BLOCK == 4096\n"
        "lamb_cases.SIZES = (*SIZES[:-2], 8_193, 13_000)\n"
        "triton_lamb.PARTIALS = 2\n"
        "print(json.dumps({f'{case} {split}': compare(TritonKernel(), PlainKernel(),"
        " is_split=split, **CASES[case]) for case in CASES for split in (False, True)}\n"
        "| {'padding': padding_is_untouched(TritonKernel())}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    differences = json.loads(done.stdout)
    assert differences.pop("padding") is True
    assert len(differences) == 2 * len(CASES)
    assert max(differences.values()) < TOLERANCE, differences


def test_cases_differ_from_each_other() -> None:
    """Else a coefficient that no kernel reads could pass."""
    outcomes = {
        tuple(take_steps(PlainKernel(), is_split=False, **case)["weight 2"].tolist())
        for case in CASES.values()
    }
    assert len(outcomes) == len(CASES)


def test_the_comparison_sees_one_wrong_element() -> None:
    class OffByOneElement(PlainKernel):
        def begin(self, inputs: StepInputs, sums: torch.Tensor) -> ApplyUpdate:
            apply_update = super().begin(inputs, sums)
            inputs.tensors[-1].exp_avg[-4:] *= 1.1
            return apply_update

    assert compare(OffByOneElement(), PlainKernel(), is_split=False) > TOLERANCE


@pytest.mark.parametrize("kernel", [PlainKernel(), CpuKernel(), ApexKernel(StandInForAmpC())])
def test_padding_between_parameters_is_left_alone(kernel: Kernel) -> None:
    assert padding_is_untouched(kernel)


def test_the_kernel_in_c_gives_the_same_bits_with_any_number_of_threads() -> None:
    outcomes = []
    before = torch.get_num_threads()
    try:
        for num_threads in (1, 2, 5):
            torch.set_num_threads(num_threads)
            outcomes.append(take_steps(CpuKernel(), is_split=True))
    finally:
        torch.set_num_threads(before)
    for other in outcomes[1:]:
        assert all(torch.equal(other[name], value) for name, value in outcomes[0].items())


def test_norms_of_a_large_tensor_are_right_in_c() -> None:
    """All elements alike, where float32 sums drift by 1e-3 in amounts that do not cancel."""
    weight = torch.nn.Parameter(torch.full((8_000_000,), 0.0123))
    weight.grad = torch.full_like(weight, 1e-3)
    optimizer = Lamb([weight], lr=0.1, eps=0.0, weight_decay=0.01, kernel="cpu")
    optimizer.step()
    norms = optimizer.last_norms()
    assert norms is not None
    exact = 0.0123 * math.sqrt(8_000_000)
    assert norms.weight_norms.tolist() == pytest.approx([exact], rel=5e-7)


@pytest.mark.parametrize("kernel", [PlainKernel(), CpuKernel(), ApexKernel(StandInForAmpC())])
def test_a_nan_reaches_its_own_parameter_and_no_other(kernel: Kernel) -> None:
    weights = torch.ones(6)
    gradient = torch.tensor([1.0, math.nan, 1.0, 1.0, 1.0, 1.0])
    fragments = (Fragment(0, 0, 0, 3), Fragment(1, 3, 0, 3))
    flat = FlatTensors(weights, gradient, torch.zeros(6), torch.zeros(6), fragments, True)
    rule = rule_at(1)
    sums = torch.zeros(4, 2, dtype=torch.float64)
    apply_update = kernel.begin(StepInputs((flat,), rule, (3, 3), None), sums)
    apply_update(rule.step_size * rule.factors(sums))
    assert weights[:3].isnan().all()
    assert weights[3:].isfinite().all()
    assert sums[WEIGHT, 1].item() == pytest.approx(3.0)


def test_sizes_cover_both_ways_of_the_kernel_in_c() -> None:
    block = CpuKernel()._library.lamb_block()
    assert min(SIZES) < block // 2 < block < max(SIZES)
