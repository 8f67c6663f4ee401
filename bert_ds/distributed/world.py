"""This process among all processes of a run, read from what its launcher set, without torch."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from bert_ds.errors import LaunchError

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
    (
        "slurm",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        ("SLURM_STEP_TASKS_PER_NODE",),
    ),
)


@dataclass(frozen=True)
class World:
    """This process among all processes of the run."""

    rank: int
    """From 0 to world_size - 1."""
    world_size: int
    """Processes of the run."""
    local_rank: int
    """Rank among the processes of this host; the number of the GPU that it uses."""
    local_world_size: int
    """Processes on this host."""
    launcher: str
    """The launcher that set these: torch (also deepspeed's), openmpi, mpich, slurm or none."""

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files and logs progress."""
        return self.rank == 0

    @property
    def name(self) -> str:
        """The rank's name in messages; with its host, where there are several."""
        is_alone = self.local_world_size == self.world_size
        return f"rank {self.rank}" if is_alone else f"rank {self.rank} on {socket.gethostname()}"


def world_from_environment(environment: Mapping[str, str]) -> World:
    """Read rank and world size from what the launcher set; without a launcher, one process.

    Raises:
        LaunchError: some of the variables are missing, or are not numbers.
    """
    for launcher, rank_key, size_key, local_key, local_size_keys in _LAUNCHERS:
        if rank_key not in environment and size_key not in environment:
            continue
        if launcher == "slurm" and size_key not in environment:
            continue  # a batch script itself has a SLURM_PROCID, and is no task of a step
        for missing, present in ((rank_key, size_key), (size_key, rank_key)):
            if missing not in environment:
                raise LaunchError(
                    f"{present} is set and {missing} is not; a launcher sets both. Unset {present} "
                    "to run one process"
                )
        rank = _number(environment, rank_key)
        world_size = _number(environment, size_key)
        local_rank = _number(environment, local_key) if local_key in environment else rank
        if launcher != "torch" and local_key not in environment and world_size > 1:
            raise LaunchError(f"{rank_key} is set by the launcher but {local_key} is not")
        local_sizes = [_leading_number(environment, key) for key in local_size_keys]
        local_world_size = next((size for size in local_sizes if size is not None), world_size)
        if not 0 <= rank < world_size:
            raise LaunchError(
                f"{rank_key} ({rank}) must be at least 0 and below {size_key} ({world_size})"
            )
        return World(rank, world_size, local_rank, local_world_size, launcher)
    return World(0, 1, 0, 1, "none")


def _number(environment: Mapping[str, str], key: str) -> int:
    try:
        return int(environment[key])
    except ValueError as err:
        raise LaunchError(f"{key} must be a number, it is '{environment[key]}'") from err


def _leading_number(environment: Mapping[str, str], key: str) -> int | None:
    """Return the number that a variable begins with.

    Slurm writes 8(x4) for 8 tasks on each of 4 hosts.
    """
    found = re.match(r"\d+", environment.get(key, ""))
    return int(found[0]) if found else None
