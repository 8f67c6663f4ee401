"""What the engine reports lies on the engine's device, whatever DeepSpeed hands out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bert_ds.engine import TrainEngine

OTHER_DEVICE = torch.device("meta")
"""Stands for a GPU: torch refuses to mix it with the CPU in one operation."""


class DeepSpeedEngine:
    """What DeepSpeed 0.19.8 says of a gradient norm after some update."""

    device = OTHER_DEVICE

    def __init__(self, norm: Any) -> None:
        self._norm = norm

    def get_global_grad_norm(self) -> Any:
        return self._norm


class ShardedOptimizer:
    layout = SimpleNamespace(is_sharded=True)


def engine_after(norm: Any) -> TrainEngine:
    """An engine on another device than the CPU whose last update had this norm."""
    engine = object.__new__(TrainEngine)
    engine.__dict__.update(_engine=DeepSpeedEngine(norm), optimizer=ShardedOptimizer())
    return engine


NORMS = {
    "applied": torch.ones((), device=OTHER_DEVICE),
    "skipped": float("inf"),
    "offloaded": torch.ones(()),
}


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_a_gradient_norm_is_on_the_engines_device(norm: Any) -> None:
    found = engine_after(norm).grad_norm()
    assert found is not None
    assert (found.device.type, found.dtype, found.shape) == ("meta", torch.float64, ())


def test_norms_of_applied_and_skipped_updates_can_be_stacked() -> None:
    norms = [engine_after(norm).grad_norm() for norm in NORMS.values()]
    stacked = torch.stack([norm for norm in norms if norm is not None])
    assert (stacked.device.type, stacked.shape) == ("meta", (3,))


def test_a_norm_that_is_not_known_stays_so() -> None:
    assert engine_after(None).grad_norm() is None
