"""Another optimizer is one file: AdamW and StableAdamW as rules, whole and in shards.

AdamW is LAMB's arithmetic without a trust ratio, and so has its hand-written kernels; StableAdamW
has a factor of its own, from sums that LAMB does not need.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

import pytest
import torch

from bert_ds.errors import ConfigError
from bert_ds.optim.lamb_rule import LambRule
from bert_ds.optim.layout import FlatShard, ShardLayout, fragments_within
from bert_ds.optim.optimizer import Params, RuleOptimizer
from bert_ds.optim.rule import ELEMENTS, NUM_SUMS

SHAPES = {"a": (7, 5), "b": (300,), "c": (1,)}
NUM_STEPS = 4
SETTINGS = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}


class AdamWRule(LambRule):
    title = "AdamW"

    @staticmethod
    def fault_of(settings: Mapping[str, Any]) -> str | None:
        return None if settings["lr"] >= 0.0 else "lr must be at least 0"

    @classmethod
    def at(cls, group: dict[str, Any], step: int) -> AdamWRule:
        beta1, beta2 = group["betas"]
        return cls(
            step, beta1, beta2, 1.0 - beta1, 1.0 - beta1**step, 1.0 - beta2**step, group["eps"],
            group["weight_decay"], group["lr"], 0.0, math.inf, is_exempt=True,
        )  # fmt: skip


@dataclass(frozen=True)
class StableAdamWRule:
    """Wortsman et al. 2023, arXiv:2304.13013, algorithm 2: lr / max(1, RMS of g / sqrt(v))."""

    title: ClassVar[str] = "StableAdamW"
    num_others: ClassVar[int] = 1
    is_exempt: ClassVar[bool] = False
    fused_kernels: ClassVar[tuple[str, ...]] = ()

    adamw: AdamWRule

    @staticmethod
    def fault_of(settings: Mapping[str, Any]) -> str | None:
        return AdamWRule.fault_of(settings)

    @classmethod
    def at(cls, group: dict[str, Any], step: int) -> StableAdamWRule:
        return cls(AdamWRule.at(group, step))

    @property
    def step_size(self) -> float:
        return self.adamw.step_size

    def advance(
        self,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        exp_avg: torch.Tensor,
        exp_avg_sq: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        (update,) = self.adamw.advance(weight, gradient, exp_avg, exp_avg_sq)
        root = (exp_avg_sq / self.adamw.correction2).sqrt_().clamp_(min=self.adamw.eps)
        return update, gradient / root

    def factors(self, sums: torch.Tensor) -> torch.Tensor:
        mean_square = sums[NUM_SUMS] / sums[ELEMENTS].clamp(min=1.0)
        return 1.0 / mean_square.sqrt().clamp(min=1.0)


class AdamW(RuleOptimizer):
    rule = AdamWRule

    def __init__(self, params: Params, kernel: str = "auto", **settings: Any) -> None:
        super().__init__(params, {**settings, "max_grad_norm": 0.0, "kernel": kernel})


class StableAdamW(AdamW):
    rule = StableAdamWRule


def whole_weights() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(s, generator=generator)) for s in SHAPES.values()]


def gradients(step: int) -> list[torch.Tensor]:
    """A small start and a jump, which StableAdamW's factor answers."""
    generator = torch.Generator().manual_seed(100 + step)
    scale = 5.0 if step == NUM_STEPS else 0.1
    return [scale * torch.randn(shape, generator=generator) for shape in SHAPES.values()]


def after_steps(optimizer: torch.optim.Optimizer, weights: list[torch.nn.Parameter]) -> None:
    for step in range(1, NUM_STEPS + 1):
        for weight, gradient in zip(weights, gradients(step), strict=True):
            weight.grad = gradient
        optimizer.step()


def stable_adamw_by_hand() -> tuple[list[torch.Tensor], list[float]]:
    """The formulae on whole float64 tensors; weights, and the last factors."""
    weights = [weight.detach().double() for weight in whole_weights()]
    m, v = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    (beta1, beta2), factors = SETTINGS["betas"], []
    for t in range(1, NUM_STEPS + 1):
        factors = []
        for k, gradient in enumerate(gradients(t)):
            g = gradient.double()
            m[k] = beta1 * m[k] + (1 - beta1) * g
            v[k] = beta2 * v[k] + (1 - beta2) * g * g
            m_hat, v_hat = m[k] / (1 - beta1**t), v[k] / (1 - beta2**t)
            rms = (g * g / v_hat.clamp(min=SETTINGS["eps"] ** 2)).mean().sqrt().item()
            factors.append(1.0 / max(1.0, rms))
            u = m_hat / (v_hat.sqrt() + SETTINGS["eps"]) + SETTINGS["weight_decay"] * weights[k]
            weights[k] = weights[k] - SETTINGS["lr"] * factors[-1] * u
    return weights, factors


@pytest.mark.parametrize("kernel", ["plain", "cpu"])
def test_adamw_is_the_one_of_torch(kernel: str) -> None:
    found, expected = whole_weights(), whole_weights()
    after_steps(AdamW(found, kernel, **SETTINGS), found)
    after_steps(torch.optim.AdamW(expected, **SETTINGS), expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_stable_adamw_is_its_formulae() -> None:
    weights = whole_weights()
    optimizer = StableAdamW(weights, **SETTINGS)
    after_steps(optimizer, weights)
    expected, factors = stable_adamw_by_hand()
    assert min(factors) < 0.6
    assert list(optimizer.last_trust_ratios().values()) == pytest.approx(factors, rel=1e-6)
    for mine, by_hand in zip(weights, expected, strict=True):
        assert torch.allclose(mine.double(), by_hand, rtol=1e-5, atol=1e-6)
    assert [choice.kernel.name for choice in optimizer.kernel_choices] == ["plain"]


@pytest.mark.parametrize("optimizer_class", [AdamW, StableAdamW])
def test_shards_give_the_weights_of_whole_parameters(optimizer_class: type[AdamW]) -> None:
    expected = whole_weights()
    after_steps(optimizer_class(expected, "plain", **SETTINGS), expected)

    wholes = whole_weights()
    sizes = [weight.numel() for weight in wholes]
    spans = list(zip(range(3), [0, *accumulate(sizes[:-1])], sizes, strict=True))
    length = -(-sum(sizes) // 2)
    flats = [torch.nn.Parameter(torch.zeros(length)) for _ in range(2)]
    shards = tuple(
        FlatShard(flat, fragments_within(spans, k * length, (k + 1) * length))
        for k, flat in enumerate(flats)
    )
    layout = ShardLayout(tuple(SHAPES), tuple(w.shape for w in wholes), shards, None)
    groups = [{"params": wholes, "names": list(SHAPES)}]
    optimizer = optimizer_class(groups, "plain", **SETTINGS)
    optimizer.bind(layout)
    optimizer.param_groups[0]["params"] = flats
    by_flat = {id(flat): flat.detach() for flat in flats}
    starts = {name: whole.detach() for name, whole in zip(SHAPES, wholes, strict=True)}
    layout.scatter(starts, by_flat)
    for step in range(1, NUM_STEPS + 1):
        for flat in flats:
            flat.grad = torch.zeros(length)
        named = dict(zip(SHAPES, gradients(step), strict=True))
        layout.scatter(named, {id(f): f.grad for f in flats if f.grad is not None})
        optimizer.step()
    found = layout.gather(by_flat)
    for name, weight in zip(SHAPES, expected, strict=True):
        assert torch.allclose(found[name], weight.detach(), rtol=1e-6, atol=1e-7), name


def test_a_kernel_that_does_not_compute_a_rule_is_refused() -> None:
    weights = whole_weights()
    with pytest.raises(ConfigError, match="'cpu' cannot be used here: it does not compute this"):
        after_steps(StableAdamW(weights, "cpu", **SETTINGS), weights)


def test_a_rule_refuses_settings_under_its_own_name() -> None:
    with pytest.raises(ConfigError, match="AdamW's lr must be at least 0"):
        AdamW(whole_weights(), **{**SETTINGS, "lr": -1.0})
