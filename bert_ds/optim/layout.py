"""Where the elements of parameters lie in the tensors that an optimizer updates.

ZeRO gives an optimizer flat tensors, each a shard of many parameters end to end. A layout records
which elements of which parameter lie where, so that sums over whole parameters can be added up over
all ranks, and a checkpoint can be written by parameter. Without ZeRO every parameter is one
fragment, in a tensor of its own. A layout knows no engine: `zero_layout` reads one out of
DeepSpeed.

What makes this hard: `check`, `gather` and every step add up over ranks, so all ranks must call
them together, and `names` must be in the same order on all of them, since the column of a parameter
in a sum is its number there. An error is raised only after the sum, or the other ranks would wait
for this one. Elements of a shard that belong to no fragment are padding, which may be uninitialised
memory: nothing may sum over it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as torch_dist

from bert_ds.errors import TrainingError


@dataclass(frozen=True)
class Fragment:
    """Consecutive elements of one parameter in one flat tensor of this rank."""

    parameter: int
    """Number of the parameter, an index into the layout's `names`."""
    flat_start: int
    """Place of the first element in the flat tensor."""
    parameter_start: int
    """Place of the first element in the flattened parameter."""
    numel: int
    """How many elements there are."""

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the fragment's elements as a view of a tensor that lies as the flat one does."""
        return flat.narrow(0, self.flat_start, self.numel)


@dataclass(frozen=True)
class FlatShard:
    """One tensor that the optimizer updates on this rank."""

    tensor: torch.Tensor
    """Float32 [n], master weights; elements in no fragment are padding and mean nothing. In a
    layout of whole parameters it is a parameter in its own shape."""
    fragments: tuple[Fragment, ...]
    """The parts of parameters that lie in it, in order."""


@dataclass(frozen=True)
class ShardLayout:
    """All tensors of this rank that an optimizer updates, and the parameters that lie in them."""

    names: tuple[str, ...]
    """Names of all parameters, the same on every rank."""
    shapes: tuple[torch.Size, ...]
    """Shapes of the whole parameters."""
    shards: tuple[FlatShard, ...]
    """This rank's tensors."""
    group: torch_dist.ProcessGroup | None
    """The ranks that together hold every element once; None for all ranks."""
    is_sharded: bool = True
    """False where every rank holds all parameters whole, and nothing is added up over ranks."""

    @classmethod
    def of_whole_parameters(cls, groups: Iterable[Mapping[str, Any]]) -> ShardLayout:
        """Return the layout of an optimizer's groups, each with `params` and their `names`."""
        names = tuple(name for group in groups for name in group["names"])
        parameters = [parameter for group in groups for parameter in group["params"]]
        shards = tuple(
            FlatShard(parameter, (Fragment(number, 0, 0, parameter.numel()),))
            for number, parameter in enumerate(parameters)
        )
        shapes = tuple(parameter.shape for parameter in parameters)
        return cls(names, shapes, shards, None, is_sharded=False)

    @functools.cached_property
    def numels(self) -> tuple[int, ...]:
        """The number of elements of each whole parameter."""
        return tuple(shape.numel() for shape in self.shapes)

    @functools.cached_property
    def _by_tensor(self) -> dict[int, FlatShard]:
        return {id(shard.tensor): shard for shard in self.shards}

    def shard_of(self, tensor: torch.Tensor) -> FlatShard | None:
        """Return the shard whose tensor this very object is, or None.

        A whole parameter that has got another size is not known either.
        """
        shard = self._by_tensor.get(id(tensor))
        if shard is None or self.is_sharded:
            return shard
        return shard if tensor.numel() == shard.fragments[0].numel else None

    def all_reduce_sum(self, tensor: torch.Tensor) -> None:
        """Sum a tensor over the ranks that hold parts, in place; all of them call it together."""
        if self.is_sharded:
            all_reduce_sum(tensor, self.group)

    def check(self) -> None:
        """Check that the ranks together hold every element of every parameter exactly once.

        All ranks call it together.

        Raises:
            TrainingError: A parameter is held in part or twice.
        """
        held = torch.zeros(2, len(self.names), dtype=torch.int64)  # elements, and overlaps
        for shard in self.shards:
            end = 0
            for fragment in sorted(shard.fragments, key=lambda each: each.flat_start):
                held[1, fragment.parameter] += int(fragment.flat_start < end)
                end = fragment.flat_start + fragment.numel
                held[0, fragment.parameter] += fragment.numel
        self.all_reduce_sum(held)  # before any complaint, so that no rank waits for another
        for name, overlaps in zip(self.names, held[1].tolist(), strict=True):
            if overlaps:
                raise TrainingError(f"the layout of {name} overlaps another parameter's")
        for name, shape, count in zip(self.names, self.shapes, held[0].tolist(), strict=True):
            if count != shape.numel():
                raise TrainingError(
                    f"the ranks hold {count} of the {shape.numel()} elements of {name}: the "
                    "engine's layout is not understood"
                )

    def gather(self, flats: Mapping[int, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Put whole parameters together. All ranks of the group call it together.

        Args:
            flats: For each shard, by `id(shard.tensor)`, a tensor that lies as it does. The
                elements of a shard that is left out become 0.

        Returns:
            Float32 by parameter name, on the CPU; empty on all ranks but the group's first. Where
            parameters are whole, the tensors of `flats` themselves, and none for the others.
        """
        if not self.is_sharded:
            shards = zip(self.names, self.shards, strict=True)
            return {n: flats[id(s.tensor)] for n, s in shards if id(s.tensor) in flats}
        first = not torch_dist.is_initialized() or torch_dist.get_rank(self.group) == 0
        found: dict[str, torch.Tensor] = {}
        pieces = self._pieces_by_parameter(flats)
        for number, (name, shape) in enumerate(zip(self.names, self.shapes, strict=True)):
            whole = torch.zeros(shape.numel(), dtype=torch.float32)
            for fragment, values in pieces.get(number, ()):
                whole.narrow(0, fragment.parameter_start, fragment.numel).copy_(values)
            # Every element is non-zero on one rank at most: the sum is exact.
            self.all_reduce_sum(whole)
            if first:
                found[name] = whole.reshape(shape)
        return found

    def scatter(
        self, wholes: Mapping[str, torch.Tensor], flats: Mapping[int, torch.Tensor]
    ) -> None:
        """Copy this rank's fragments of whole parameters into its tensors; needs no other rank.

        Args:
            wholes: Whole parameters by name.
            flats: For each shard, by `id(shard.tensor)`, the tensor to fill.
        """
        if not self.is_sharded:
            for name, shard in zip(self.names, self.shards, strict=True):
                flats[id(shard.tensor)].copy_(wholes[name])
            return
        for number, pieces in self._pieces_by_parameter(flats).items():
            whole = wholes[self.names[number]].reshape(-1)
            for fragment, values in pieces:
                values.copy_(whole.narrow(0, fragment.parameter_start, fragment.numel))

    def _pieces_by_parameter(
        self, flats: Mapping[int, torch.Tensor]
    ) -> dict[int, list[tuple[Fragment, torch.Tensor]]]:
        pieces: dict[int, list[tuple[Fragment, torch.Tensor]]] = {}
        for shard in self.shards:
            flat = flats.get(id(shard.tensor))
            if flat is not None:
                for fragment in shard.fragments:
                    pieces.setdefault(fragment.parameter, []).append((fragment, fragment.of(flat)))
        return pieces


def all_reduce_sum(tensor: torch.Tensor, group: torch_dist.ProcessGroup | None) -> None:
    """Sum a tensor over the ranks of a group, in place, wherever it lies.

    State that is offloaded lies on the CPU while the group may work on GPUs alone. Where there is
    no process group at all, this process holds everything.
    """
    if not torch_dist.is_initialized():
        return
    if torch_dist.get_backend(group) == "nccl" and tensor.device.type == "cpu":
        moved = tensor.cuda()
        torch_dist.all_reduce(moved, group=group)
        tensor.copy_(moved)
    else:
        torch_dist.all_reduce(tensor, group=group)


def fragments_within(
    spans: Sequence[tuple[int, int, int]], begin: int, end: int
) -> tuple[Fragment, ...]:
    """Return the parts of parameters that lie in one rank's range of a flat buffer.

    Args:
        spans: (Parameter number, first element in the buffer, elements) of each parameter.
        begin: First element of the range.
        end: One past its last element.
    """
    found = []
    for parameter, start, numel in spans:
        low, high = max(start, begin), min(start + numel, end)
        if low < high:
            found.append(Fragment(parameter, low - begin, low - start, high - low))
    return tuple(found)
