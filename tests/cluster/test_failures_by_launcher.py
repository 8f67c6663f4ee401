"""What fails on one host is the last thing said by every other launcher, too, and ends the job."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.test_failures_on_hosts import LONG, MakeCluster
from tests.cluster.test_launchers_on_hosts import (
    RENDEZVOUS,
    assert_equal_to_one_host,
    places,
    wait_for,
)
from tests.support.cluster import Cluster, Host, start_slurm
from tests.support.commands import BIN
from tests.support.run_folders import num_rows

Started = Callable[[], tuple[int, str]]
"""Waits for the end of a job: its exit code, and what its launcher has shown."""

LAUNCHERS = [
    "open-mpi",
    "slurm",
    pytest.param("torchrun", marks=pytest.mark.long),
    pytest.param("mpich", marks=pytest.mark.long),
]
SHORT_PATIENCE = (*LONG, "heartbeat_s=12")
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def start_by(
    launcher: str, cluster: Cluster, env: dict[str, str], *arguments: str, slurm: dict[str, str]
) -> Started:
    """Start a job on two hosts, a rank each, by a script of launchers/."""
    env = {**env, "DOCTOR": "0"}
    first = cluster.hosts[0]
    if launcher == "slurm":
        log = cluster.folder / "job.log"
        process = cluster.start(
            first, "sbatch", "--wait", "--nodes", "2", "--ntasks-per-node", "1", "--output", log,
            "launchers/slurm.sbatch", *arguments, env={**env, **slurm},
        )  # fmt: skip
        return lambda: (end_of(process)[0], log.read_text())
    if launcher == "torchrun":
        env |= {"RANKS": "1", "HOSTS": "2", "RENDEZVOUS": RENDEZVOUS}
        command = ("bash", "launchers/torchrun.sh", *arguments)
        process, other = (cluster.start(host, *command, env=env) for host in cluster.hosts)

        def both() -> tuple[int, str]:
            code, printed = end_of(process)
            assert end_of(other)[0] == code
            return code, printed

        return both
    mpiexec = {"open-mpi": "/usr/bin/mpirun.openmpi", "mpich": str(BIN / "mpiexec")}[launcher]
    env |= {"RANKS": "2", "HOSTS": "node1,node2", "MPIEXEC": mpiexec, **_AS_ROOT}
    process = cluster.start(first, "bash", "launchers/mpi.sh", *arguments, env=env)
    return lambda: end_of(process)


def end_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        stdout, stderr = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError(f"not ended: {process.communicate()}") from None
    return process.returncode, stdout + stderr


def ranks_on(cluster: Cluster, host: Host) -> list[int]:
    """The ranks of a host, without what has started them."""
    found = []
    for pid in cluster.processes(host, "pretrain"):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if "-m" in words[1:3] and words[words.index("-m") + 2] == "pretrain":
            found.append(pid)
    return found


@contextmanager
def a_shard_damaged_on(host: Host, cluster: Cluster, data: Path) -> Iterator[str]:
    """The name of a shard that this host alone sees damaged."""
    shard = next(data.glob("seq64/train-*.tar"))
    damaged = cluster.folder / "damaged.tar"
    damaged.write_bytes(bytes(shard.stat().st_size))
    cluster.run(host, "mount", "--bind", damaged, shard)
    yield shard.name


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_that_fail_are_named_last_by_every_launcher(
    make_cluster: MakeCluster, shared: Path, launcher: str
) -> None:
    """First one that is killed, then one that says why."""
    cluster = make_cluster(2)
    slurm = start_slurm(cluster) if launcher == "slurm" else {}
    second = cluster.hosts[1]
    run = f"killed-by-{launcher}"
    job = start_by(launcher, cluster, places(shared, run), "--set", *SHORT_PATIENCE, slurm=slurm)
    wait_for(lambda: num_rows(shared / run) >= 3, 90)
    (victim,) = ranks_on(cluster, second)
    os.kill(victim, signal.SIGKILL)
    killed_at = time.monotonic()
    code, printed = job()
    assert time.monotonic() - killed_at < 45
    assert code not in (0, 75), printed
    words = {
        "open-mpi": "on node node2 exited on signal 9",
        "mpich": "RUNNING AT node2; EXIT CODE: 9",
    }
    assert words.get(launcher, "(rank 1 on node2)") in printed.strip().splitlines()[-1]
    wait_for(lambda: not any(ranks_on(cluster, host) for host in cluster.hosts), 10)

    with a_shard_damaged_on(second, cluster, shared / "data") as shard:
        job = start_by(launcher, cluster, places(shared, f"damaged-{launcher}"), slurm=slurm)
        code, printed = job()
    assert code not in (0, 75), printed
    last = printed.strip().splitlines()[-1]
    assert "rank 1 on node2" in last
    assert shard in last
    wait_for(lambda: not any(ranks_on(cluster, host) for host in cluster.hosts), 10)


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["torchrun", "slurm"])
def test_a_run_is_started_again_on_the_same_hosts(
    make_cluster: MakeCluster, shared: Path, on_one_host: Path, launcher: str
) -> None:
    """A rank is killed between two checkpoints; MAX_RESTARTS is the only thing said about it."""
    cluster = make_cluster(2)
    slurm = start_slurm(cluster) if launcher == "slurm" else {}
    run = shared / f"again-by-{launcher}"
    settings = ("--set", "heartbeat_s=6", "checkpoint.every_steps=1")
    env = {**places(shared, run.name), "MAX_RESTARTS": "2"}
    job = start_by(launcher, cluster, env, *settings, slurm=slurm)
    wait_for(lambda: (run / "checkpoints" / "latest").exists(), 90)
    os.kill(ranks_on(cluster, cluster.hosts[1])[0], signal.SIGKILL)
    code, printed = job()
    assert code == 0, printed
    assert "starting it again (restart 1 of 2 since the last new checkpoint)" in printed
    assert_equal_to_one_host(run, on_one_host)
