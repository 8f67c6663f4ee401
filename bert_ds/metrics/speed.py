"""How fast a rank computes against what its device can, and the memory that it takes."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Speed:
    """What turns an update's counts and seconds into rates.

    Attributes:
        flops: counts the operations of some rows, as `bert_ds.model.family.Flops`.
        world_size: ranks that share the work.
        peak: TFLOP/s of a rank's device, where it is known.
        device: of the rank.
    """

    flops: Callable[..., int]
    world_size: int
    peak: float | None
    device: torch.device

    def tflop_per_s(
        self,
        *,
        num_tokens: int,
        num_squared_lengths: int,
        num_predictions: int,
        num_sequences: int,
        seconds: float,
    ) -> float:
        """Model FLOPs of an update's real tokens a second and rank, 10^12.

        Args:
            num_tokens, num_squared_lengths, num_predictions, num_sequences: of the update, all
                ranks; see `bert_ds.model.family.Flops`.
            seconds: that it took.
        """
        flops = self.flops(
            sum_of_lengths=num_tokens,
            sum_of_squared_lengths=num_squared_lengths,
            num_predictions=num_predictions,
            num_sequences=num_sequences,
        )
        return flops / seconds / self.world_size / 1e12

    def peak_memory_mib(self) -> float:
        """The most that this rank has taken so far, MiB: of its GPU as torch counts it, or what
        was resident of its process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
