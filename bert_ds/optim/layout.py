"""Where the elements of whole parameters lie in the flat tensors that a sharding engine updates.

ZeRO gives an optimizer flat tensors, each a shard of many parameters end to end. A layout says
which run of which parameter lies where, so that LAMB can add up the norms of whole parameters over
all ranks, and a checkpoint can be written by parameter. It knows no engine: `zero_layout` reads one
out of DeepSpeed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as torch_dist

from bert_ds.errors import TrainingError


@dataclass(frozen=True)
class Fragment:
    """Consecutive elements of one parameter in one flat tensor of this rank.

    Attributes:
        parameter: number of the parameter, an index into the layout's `names`.
        flat_start: first element's place in the flat tensor.
        parameter_start: first element's place in the flattened parameter.
        numel: elements.
    """

    parameter: int
    flat_start: int
    parameter_start: int
    numel: int

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """The fragment's elements as a view of a tensor that lies as the flat one does."""
        return flat.narrow(0, self.flat_start, self.numel)


@dataclass(frozen=True)
class Shard:
    """One flat tensor that the optimizer updates on this rank.

    Attributes:
        tensor: float32 [n], master weights; elements in no fragment are padding and mean nothing.
        fragments: what lies in it, in order.
    """

    tensor: torch.Tensor
    fragments: tuple[Fragment, ...]


@dataclass(frozen=True)
class ShardLayout:
    """All flat tensors of this rank and the parameters that they are shards of.

    Attributes:
        names: of all parameters, the same on every rank.
        shapes: of the whole parameters.
        shards: this rank's flat tensors.
        group: the ranks that together hold every element once.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    shards: tuple[Shard, ...]
    group: torch_dist.ProcessGroup | None
    _by_tensor: dict[int, Shard] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._by_tensor.update({id(shard.tensor): shard for shard in self.shards})

    def shard_of(self, tensor: torch.Tensor) -> Shard | None:
        """The shard whose flat tensor this very object is."""
        return self._by_tensor.get(id(tensor))

    def check(self) -> None:
        """Check that the ranks together hold every element of every parameter exactly once.

        All ranks call it together.

        Raises:
            TrainingError: names a parameter that is held in part or twice.
        """
        held = torch.zeros(2, len(self.names), dtype=torch.int64)  # elements, and overlaps
        for shard in self.shards:
            end = 0
            for fragment in sorted(shard.fragments, key=lambda each: each.flat_start):
                held[1, fragment.parameter] += int(fragment.flat_start < end)
                end = fragment.flat_start + fragment.numel
                held[0, fragment.parameter] += fragment.numel
        all_reduce_sum(held, self.group)  # before any complaint, so that no rank waits for another
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
        """Put whole parameters together on every rank of the group.

        Args:
            flats: for each shard, by `id(shard.tensor)`, a tensor that lies as it does.

        Returns:
            float32 by parameter name, on the CPU; empty on all ranks but the group's first.
        """
        first = not torch_dist.is_initialized() or torch_dist.get_rank(self.group) == 0
        found: dict[str, torch.Tensor] = {}
        pieces = self._pieces_by_parameter(flats)
        for number, (name, shape) in enumerate(zip(self.names, self.shapes, strict=True)):
            whole = torch.zeros(shape.numel(), dtype=torch.float32)
            for fragment, values in pieces.get(number, ()):
                whole.narrow(0, fragment.parameter_start, fragment.numel).copy_(values)
            # Every element is non-zero on one rank at most: the sum is exact.
            all_reduce_sum(whole, self.group)
            if first:
                found[name] = whole.reshape(shape)
        return found

    def scatter(
        self, wholes: Mapping[str, torch.Tensor], flats: Mapping[int, torch.Tensor]
    ) -> None:
        """Copy this rank's fragments of whole parameters into flat tensors; needs no other rank.

        Args:
            wholes: by parameter name.
            flats: for each shard, by `id(shard.tensor)`, the tensor to fill.
        """
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
    """The parts of parameters that lie in one rank's range of a flat buffer.

    Args:
        spans: (parameter number, first element in the buffer, elements) of each parameter.
        begin: first element of the range.
        end: one past its last element.
    """
    found = []
    for parameter, start, numel in spans:
        low, high = max(start, begin), min(start + numel, end)
        if low < high:
            found.append(Fragment(parameter, low - begin, low - start, high - low))
    return tuple(found)
