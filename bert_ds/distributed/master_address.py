"""MASTER_ADDR and MASTER_PORT, found out where the launcher does not export them.

deepspeed and torchrun export them. mpiexec and srun do not: under MPI rank 0 broadcasts them
(mpi4py), under Slurm every rank works them out from the job.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from bert_ds.distributed.world import World
from bert_ds.errors import LaunchError

_SLURM_PORTS = range(20_000, 30_000)


def export_master_address(world: World) -> None:
    """Set MASTER_ADDR and MASTER_PORT where there are several ranks and they are not set.

    Raises:
        LaunchError: they cannot be found out; the message names what to export.
    """
    missing = [key for key in ("MASTER_ADDR", "MASTER_PORT") if key not in os.environ]
    if world.world_size == 1 or not missing:
        return
    finders: dict[str, Callable[[World], tuple[str, int]]] = {
        "openmpi": _by_mpi,
        "mpich": _by_mpi,
        "slurm": lambda _: slurm_master_address(os.environ),
    }
    if world.launcher not in finders:
        raise LaunchError(_what_to_export(world, missing))
    try:
        address, port = finders[world.launcher](world)
    except (ImportError, OSError, KeyError, RuntimeError, subprocess.SubprocessError) as err:
        raise LaunchError(
            f"{_what_to_export(world, missing)}. They could not be found out: {err}"
        ) from err
    os.environ.setdefault("MASTER_ADDR", address)
    os.environ.setdefault("MASTER_PORT", str(port))


def _what_to_export(world: World, missing: list[str]) -> str:
    return (
        f"{world.world_size} ranks were started by {world.launcher}, but {' and '.join(missing)} "
        "must be exported: the address of the first host and a free port on it"
    )


def _by_mpi(world: World) -> tuple[str, int]:
    """Return rank 0's address and a port that is free there, by a broadcast."""
    if world.launcher == "openmpi":  # a wheel of mpi4py may find MPICH first
        os.environ.setdefault("MPI4PY_MPIABI", "openmpi")
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if comm.Get_size() != world.world_size:
        raise RuntimeError(
            f"mpi4py sees {comm.Get_size()} of {world.world_size} ranks: it is built for another "
            "MPI than this launcher's"
        )
    hosts: Any = comm.allgather(socket.gethostname())
    found: tuple[str, int] | None = None
    if world.is_main:
        others = [host for host in hosts if host != hosts[0]]
        found = (address_seen_by(others[0]) if others else "127.0.0.1", free_port())
    address, port = comm.bcast(found, root=0)
    return str(address), int(port)


def address_seen_by(other: str) -> str:
    """Return this host's address on the network to another host.

    The host's own name is no substitute: Debian's /etc/hosts gives it the address 127.0.1.1.

    Raises:
        OSError: the name is unknown, or no network leads there.
    """
    family, kind, _, _, target = socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)  # sends nothing
        return str(probe.getsockname()[0])


def free_port() -> int:
    """Return a TCP port that is free on this host now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def slurm_master_address(environment: Mapping[str, str]) -> tuple[str, int]:
    """Return the step's first host, and a port that is a function of job and step.

    Raises:
        KeyError: a variable of Slurm is missing.
        OSError, SubprocessError: scontrol does not answer.
    """
    hosts = environment["SLURM_STEP_NODELIST"]
    first = hosts
    if "[" in hosts or "," in hosts:
        command = ["scontrol", "show", "hostnames", hosts]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        first = answer.stdout.split()[0]
    number = int(environment["SLURM_JOB_ID"]) * 7 + int(environment.get("SLURM_STEP_ID", "0"))
    return first, _SLURM_PORTS[number % len(_SLURM_PORTS)]
