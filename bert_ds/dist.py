"""Ranks and the few collectives that the training loop needs, whatever launcher started them.

DeepSpeed's gradient reduction is DeepSpeed's. Here: who am I, how do we meet, sums over small
tensors, a barrier, and leaving in order. gloo serves CPUs, NCCL serves GPUs.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as torch_dist

from bert_ds.errors import BertDsError, LaunchError, PeerError

T = TypeVar("T")

_LAUNCHERS = (
    # name, rank, world size, local rank, local world size
    ("torch", "RANK", "WORLD_SIZE", "LOCAL_RANK", ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")),
    (
        "openmpi",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    ("mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", ("MPI_LOCALNRANKS",)),
    # SLURM_PROCID is also set in a batch script itself, where SLURM_STEP_ID is not.
    ("slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ()),
)


@dataclass(frozen=True)
class World:
    """This process among all processes of the run.

    Attributes:
        rank: 0 to world_size - 1.
        world_size: processes of the run.
        local_rank: rank among the processes of this host; the GPU that is used.
        local_world_size: processes on this host.
        launcher: what set these: torch (also deepspeed's), openmpi, mpich, slurm or none.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    launcher: str

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files and talks."""
        return self.rank == 0


def world_from_environment(environment: Mapping[str, str]) -> World:
    """Read rank and world size from what the launcher set; without a launcher, one process.

    Raises:
        LaunchError: the variables are there in part or are not numbers.
    """
    for launcher, rank_key, size_key, local_key, local_size_keys in _LAUNCHERS:
        if rank_key not in environment or size_key not in environment:
            continue
        rank = _number(environment, rank_key)
        world_size = _number(environment, size_key)
        local_rank = _number(environment, local_key) if local_key in environment else rank
        if launcher != "torch" and local_key not in environment and world_size > 1:
            raise LaunchError(f"{rank_key} is set by the launcher but {local_key} is not")
        local_sizes = [_number(environment, key) for key in local_size_keys if key in environment]
        if not 0 <= rank < world_size:
            raise LaunchError(
                f"{rank_key} ({rank}) must be at least 0 and below {size_key} ({world_size})"
            )
        return World(
            rank, world_size, local_rank, local_sizes[0] if local_sizes else world_size, launcher
        )
    return World(0, 1, 0, 1, "none")


def init_process_group(world: World, device: torch.device, timeout_s: float = 1800.0) -> None:
    """Bring the ranks together; afterwards collectives work.

    Args:
        world: this process and how many there are.
        device: where tensors of the run live; decides the backend.
        timeout_s: seconds that a collective waits for a missing rank before it fails.

    Raises:
        LaunchError: MASTER_ADDR or MASTER_PORT is missing, or the ranks cannot meet.
    """
    backend = "nccl" if device.type == "cuda" else "gloo"
    timeout = datetime.timedelta(seconds=timeout_s)
    os.environ.setdefault("LOCAL_RANK", str(world.local_rank))  # deepspeed.initialize asks for it
    if world.world_size == 1:
        store = torch_dist.HashStore()  # type: ignore[attr-defined]  # missing in its stubs
        torch_dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout)
        return
    missing = [key for key in ("MASTER_ADDR", "MASTER_PORT") if key not in os.environ]
    if missing:
        raise LaunchError(
            f"{world.world_size} ranks were started by {world.launcher}, but "
            f"{' and '.join(missing)} is not set; export "
            "the address of the first host and a free port on it"
        )
    try:
        torch_dist.init_process_group(
            backend,
            init_method="env://",
            rank=world.rank,
            world_size=world.world_size,
            timeout=timeout,
        )
    except (RuntimeError, ValueError) as err:
        raise LaunchError(
            f"rank {world.rank} of {world.world_size} could not meet the others at "
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}: {err}"
        ) from err


def shutdown() -> None:
    """Wait for all ranks and leave; without it DeepSpeed's processes can abort at exit."""
    if torch_dist.is_initialized():
        torch_dist.barrier()
        torch_dist.destroy_process_group()


class Communicator:
    """Small collectives over all ranks: on a CPU group for decisions, on the device for metrics."""

    def __init__(self, world: World, device: torch.device) -> None:
        self.world = world
        self.device = device
        self._cpu_group = (
            torch_dist.new_group(backend="gloo") if device.type != "cpu" else torch_dist.group.WORLD
        )

    def sum_numbers(self, values: Sequence[int]) -> list[int]:
        """Element-wise sum of host integers over all ranks; waits for all of them."""
        tensor = torch.tensor(list(values), dtype=torch.int64)
        torch_dist.all_reduce(tensor, group=self._cpu_group)
        return [int(value) for value in tensor]

    def sum_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a device tensor over all ranks, in place; does not wait for the device."""
        torch_dist.all_reduce(tensor)
        return tensor

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on at least one rank: one answer for all."""
        return self.sum_numbers([int(flag)])[0] > 0

    def barrier(self) -> None:
        """Return when every rank has come here."""
        self.sum_numbers([0])

    def together(self, action: Callable[[], T]) -> T:
        """Run `action` on every rank; where it fails on one, every rank fails.

        Without this a rank that meets a broken file leaves, and the others wait for it.

        Raises:
            BertDsError: the action's own, on the lowest rank where it failed.
            PeerError: on all others.
        """
        result: T | None = None
        failure: BertDsError | None = None
        try:
            result = action()
        except BertDsError as err:
            failure = err
        first_failed = self._first_rank_where(failure is not None)
        if first_failed is None:
            return result  # type: ignore[return-value]  # no failure: the action has returned a T
        if failure is not None and first_failed == self.world.rank:
            raise failure
        raise PeerError(first_failed)

    def _first_rank_where(self, flag: bool) -> int | None:
        flags = [0] * self.world.world_size
        flags[self.world.rank] = int(flag)
        return next((rank for rank, is_set in enumerate(self.sum_numbers(flags)) if is_set), None)

    def broadcast_text(self, text: str | None) -> str:
        """Rank 0's text, on every rank."""
        values = [text]
        torch_dist.broadcast_object_list(values, src=0, group=self._cpu_group)
        assert values[0] is not None, "rank 0 must give the text"
        return values[0]


def _number(environment: Mapping[str, str], key: str) -> int:
    try:
        return int(environment[key])
    except ValueError as err:
        raise LaunchError(f"{key} must be a number, it is '{environment[key]}'") from err
