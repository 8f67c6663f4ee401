"""LAMB's kernels on a real GPU: equal to the plain one, and no wait for the device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bert_ds.config.optimizer import KernelName
from bert_ds.optim import Lamb
from bert_ds.optim.kernels import choose_kernel
from bert_ds.optim.kernels.plain import PlainKernel
from tests.support.commands import run
from tests.support.datasets import make_dataset
from tests.support.lamb_cases import CASES, compare
from tests.support.recipes import tiny_deepspeed, tiny_recipe, write_recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

TOLERANCE = 3e-6
"""As on CPUs: relative to the norm of each tensor."""
CUDA = torch.device("cuda")


@pytest.mark.parametrize("is_split", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize(
    ("name", "case"),
    [("triton", case) for case in CASES]
    + [("apex", case) for case in CASES if case != "uncorrected"],  # apex corrects always
)
def test_a_kernel_is_the_plain_one(name: KernelName, case: str, is_split: bool) -> None:
    if name == "apex":
        pytest.importorskip("amp_C")
    kernel = choose_kernel(name, CUDA, torch.float32).kernel
    changes = {**CASES[case], "device": CUDA}
    assert compare(kernel, PlainKernel(), is_split=is_split, **changes) < TOLERANCE


def make_weights() -> list[torch.nn.Parameter]:
    weights = [torch.nn.Parameter(torch.randn(n, 257, device=CUDA)) for n in (1, 40, 1000)]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    return weights


def test_auto_takes_triton_and_a_step_never_waits_for_the_device() -> None:
    optimizer = Lamb(make_weights(), lr=0.01, max_grad_norm=1.0)
    for _ in range(2):  # compiles, and sends its tables
        optimizer.step()
    assert [choice.kernel.name for choice in optimizer.kernel_choices] == ["triton"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step()
        optimizer.last_norms()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_step_repeats_bit_for_bit() -> None:
    outcomes = []
    for _ in range(2):
        torch.manual_seed(3)
        weights = make_weights()
        optimizer = Lamb(weights, lr=0.01)
        for _ in range(5):
            optimizer.step()
        outcomes.append([weight.detach().clone() for weight in weights])
    assert all(torch.equal(a, b) for a, b in zip(*outcomes, strict=True))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_learns_under_zero(tmp_path: Path, precision: str) -> None:
    for length in (32, 64):
        make_dataset(tmp_path / "data" / f"seq{length}", sequence_length=length)
    deepspeed = {**tiny_deepspeed(), precision: {"enabled": True}}
    deepspeed["zero_optimization"] = {"stage": 1}
    write_recipe(tmp_path / "recipe", tiny_recipe((60, 4)), deepspeed)
    done = run(
        "bert-ds", "pretrain", "--recipe", tmp_path / "recipe", "--data", tmp_path / "data",
        "--output-dir", tmp_path / "run", env={"DS_ACCELERATOR": "cuda"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert sum(losses[50:60]) < sum(losses[:10])


def test_the_step_at_bert_large(tmp_path: Path) -> None:
    """Prints the figures; fails only where there are none."""
    done = run(
        "bert-ds", "bench", "optimizer", "--recipe", "ds_configs/bert-large", "--json",
        tmp_path / "optimizer.json", env={"DS_ACCELERATOR": "cuda"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    print(done.stdout)
