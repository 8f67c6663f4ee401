"""LAMB against the one of the package torch_optimizer, in the semantics that they share."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch_optimizer

from bert_ds.optim import Lamb

SHAPES = [(64, 32), (32,), (300, 400)]
NUM_STEPS = 20


def weights_after(make_optimizer: Any) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    weights = [torch.nn.Parameter(torch.randn(s, generator=generator) * 0.05) for s in SHAPES]
    optimizer = make_optimizer(weights)
    for _ in range(NUM_STEPS):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator) * 0.01
        optimizer.step()
    return [weight.detach() for weight in weights]


@pytest.mark.parametrize("kernel", ["plain", "cpu"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        # it scales the step by the bias correction, as DeepSpeed's kernel does
        ({"variant": "deepspeed", "weight_decay": 0.01}, {"debias": True, "weight_decay": 0.01}),
        (
            {"bias_correction": False, "use_nvlamb": True, "weight_decay": 0.01},
            {"debias": False, "weight_decay": 0.01},
        ),
        # without eps and decay the correction is a factor of u, which the trust ratio takes out
        ({"use_nvlamb": True, "weight_decay": 0.0, "eps": 0.0}, {"debias": False, "eps": 0.0}),
    ],
    ids=["deepspeed", "uncorrected", "corrected"],
)
def test_twenty_updates_agree(kernel: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    found = weights_after(lambda params: Lamb(params, lr=0.01, kernel=kernel, **ours))
    expected = weights_after(
        lambda params: torch_optimizer.Lamb(params, lr=0.01, clamp_value=math.inf, **theirs)
    )
    start = weights_after(lambda params: torch.optim.SGD(params, lr=0.0))
    for mine, other, before in zip(found, expected, start, strict=True):
        moved = (other - before).norm()
        assert moved > 0.01 * before.norm()
        assert (mine - other).norm() < 2e-6 * moved  # float32 norms there, float64 sums here
