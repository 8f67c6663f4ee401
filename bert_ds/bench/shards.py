"""Makes ZeRO's flat shards of all ranks in one process, for measurements without an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from bert_ds.optim.layout import FlatShard, ShardLayout, fragments_within


@dataclass(frozen=True)
class FlatShards:
    """All parameters as ZeRO 1 and 2 lay them out: a group end to end, cut into equal parts."""

    layout: ShardLayout
    """The layout of all ranks' shards; this process holds every element."""
    by_group: tuple[tuple[torch.nn.Parameter, ...], ...]
    """The shards of each parameter group, in the groups' order."""

    @torch.no_grad()
    def copy_from(self, wholes: Mapping[str, torch.Tensor], *, to_gradients: bool) -> None:
        """Fill the shards, or their gradients, from whole tensors by name."""
        flats = {}
        for shard in self.layout.shards:
            flat = shard.tensor.grad if to_gradients else shard.tensor
            assert flat is not None
            flats[id(shard.tensor)] = flat.detach()
        self.layout.scatter(wholes, flats)

    def copy_to(self, wholes: Mapping[str, torch.Tensor]) -> None:
        """Fill whole tensors by name from the shards."""
        for shard in self.layout.shards:
            for fragment in shard.fragments:
                whole = wholes[self.layout.names[fragment.parameter]].detach().view(-1)
                part = whole.narrow(0, fragment.parameter_start, fragment.numel)
                part.copy_(fragment.of(shard.tensor.detach()))


def flat_shards(
    groups: Sequence[Mapping[str, Any]], num_ranks: int, device: torch.device
) -> FlatShards:
    """Make shards with weights and gradients of zero, for `num_ranks` ranks.

    Args:
        groups: result of `param_groups`, of which only names and shapes are read.
        num_ranks: number of parts that each group is cut into.
        device: device of the shards.
    """
    names = [name for group in groups for name in group["names"]]
    shapes = [parameter.shape for group in groups for parameter in group["params"]]
    shards, by_group, number = [], [], 0
    for group in groups:
        sizes = [parameter.numel() for parameter in group["params"]]
        numbers = range(number, number + len(sizes))
        spans = list(zip(numbers, [0, *accumulate(sizes[:-1])], sizes, strict=True))
        number += len(sizes)
        length = -(-sum(sizes) // num_ranks)
        flats = []
        for rank in range(num_ranks):
            flat = torch.nn.Parameter(torch.zeros(length, device=device))
            flat.grad = torch.zeros(length, device=device)
            fragments = fragments_within(spans, rank * length, (rank + 1) * length)
            shards.append(FlatShard(flat, fragments))
            flats.append(flat)
        by_group.append(tuple(flats))
    layout = ShardLayout(tuple(names), tuple(shapes), tuple(shards), None)
    layout.check()
    return FlatShards(layout, tuple(by_group))
