"""LAMB under ZeRO as it is without a layout: one trust ratio a flat shard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bert_ds.optim import Lamb


@contextmanager
def naive_ratios() -> Iterator[None]:
    """Within it, a bound optimizer updates each flat tensor as if it were one parameter."""
    whole_step = Lamb.step

    def step(self: Lamb, closure: None = None) -> None:
        if not self.layout.is_sharded:
            whole_step(self, closure)
            return
        inner = self.__dict__.setdefault("_stock", {})
        for group in self.param_groups:
            for flat in group["params"]:
                stock = inner.setdefault(id(flat), Lamb([flat], lr=0.0))
                stock.param_groups[0].update(
                    {k: v for k, v in group.items() if k not in ("params", "names")}
                )
                stock.step()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lamb, "step", step)
        yield
