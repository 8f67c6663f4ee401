"""How fast a rank computes, compared with its device's peak, and how much memory it takes."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Throughput:
    """Computes rates from an update's counts and seconds."""

    flops: Callable[..., int]
    """Counts the operations of some rows, as `bert_ds.model.family.Flops`."""
    world_size: int
    """Ranks that share the work."""
    peak: float | None
    """Peak of the rank's device, 10^12 FLOP/s; None if unknown."""
    device: torch.device
    """Device of the rank."""

    def tflop_per_s(
        self,
        *,
        num_tokens: int,
        num_squared_lengths: int,
        num_predictions: int,
        num_sequences: int,
        seconds: float,
    ) -> float:
        """Return the model FLOPs of an update's real tokens, per second and rank, 10^12.

        Args:
            num_tokens: real tokens of the update, all ranks.
            num_squared_lengths: sum of the squares of its rows' lengths.
            num_predictions: masked positions.
            num_sequences: rows.
            seconds: duration of the update.
        """
        flops = self.flops(
            sum_of_lengths=num_tokens,
            sum_of_squared_lengths=num_squared_lengths,
            num_predictions=num_predictions,
            num_sequences=num_sequences,
        )
        return flops / seconds / self.world_size / 1e12

    def peak_memory_mib(self) -> float:
        """Return the most memory that this rank has taken so far, MiB.

        On a GPU it is what torch has allocated there, on a CPU the resident memory of the process.
        """
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
