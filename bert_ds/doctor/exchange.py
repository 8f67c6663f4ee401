"""An all-reduce over all ranks whose sum is checked, with its latency and bandwidth."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
import torch.distributed as torch_dist

from bert_ds.distributed.world import World
from bert_ds.doctor.findings import Finding

_SMALL_ROUNDS = 30
_LARGE_ROUNDS = 5
_LARGE_ELEMENTS = 4 << 20  # 16 MiB of float32


@dataclass(frozen=True)
class Exchange:
    """The measured all-reduces."""

    num_ranks: int
    """Ranks that took part."""
    backend: str
    """gloo or nccl."""
    latency_us: float
    """Median time of an all-reduce of one element, in microseconds."""
    bandwidth_gb_per_s: float
    """Bus bandwidth of an all-reduce of 16 MiB, 2 (n - 1) / n x bytes / time (as nccl-tests defines
    it), median."""
    is_right: bool
    """Whether every sum was right."""

    def as_finding(self) -> Finding:
        """Return the measurement as a finding."""
        message = (
            f"{self.num_ranks} ranks over {self.backend}: {self.latency_us:.0f} us an all-reduce, "
            f"{self.bandwidth_gb_per_s:.2f} GB/s"
        )
        if not self.is_right:
            way_out = "a network card, a GPU or its driver is broken: leave hosts out one by one"
            return Finding("error", "all-reduce", f"wrong sums; {message}", way_out)
        return Finding("ok", "all-reduce", message)


def measure(world: World, device: torch.device) -> Exchange:
    """Measure all-reduces over all ranks of the process group; all of them call it together."""
    small = torch.zeros(1, device=device)
    large = torch.empty(_LARGE_ELEMENTS, device=device)
    latencies: list[float] = []
    seconds: list[float] = []
    is_right = True
    expected = world.world_size * (world.world_size + 1) / 2
    for rounds, times, tensor in (
        (_SMALL_ROUNDS, latencies, small),
        (_LARGE_ROUNDS, seconds, large),
    ):
        for number in range(rounds + 1):
            tensor.fill_(world.rank + 1)
            _wait_for(device)
            begun = time.perf_counter()
            torch_dist.all_reduce(tensor)
            _wait_for(device)
            if number:  # the first one sets connections up
                times.append(time.perf_counter() - begun)
            is_right &= bool((tensor == expected).all())
    num_bytes = large.numel() * large.element_size()
    bus = 2 * (world.world_size - 1) / world.world_size * num_bytes / statistics.median(seconds)
    return Exchange(
        num_ranks=world.world_size,
        backend=torch_dist.get_backend(),
        latency_us=statistics.median(latencies) * 1e6,
        bandwidth_gb_per_s=bus / 1e9,
        is_right=is_right,
    )


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
