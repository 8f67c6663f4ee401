"""What fails on one host ends the job on all, in time, with its reason as the last thing said."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.cluster.test_launchers_on_hosts import assert_equal_to_one_host, places, wait_for
from tests.support.cluster import Cluster, Host
from tests.support.run_folders import num_rows, summary_of

LONG = ("phases.0.total_steps=100000", "checkpoint.every_steps=1000")
"""Settings of a run that does not end by itself."""

DIES_AFTER_THE_RENDEZVOUS = """
import os
if os.environ.get("RANK") == "1":
    import threading, time, sys
    def wait():
        while "bert_ds.distributed.rendezvous" not in sys.modules:
            time.sleep(0.01)
        from bert_ds.distributed import rendezvous
        rendezvous.choose_interface = lambda *_: os.kill(os.getpid(), 9)
        while "bert_ds.distributed.communicator" not in sys.modules:
            time.sleep(0.001)
        from bert_ds.distributed import communicator as dist
        dist.choose_interface = rendezvous.choose_interface
    threading.Thread(target=wait, daemon=True).start()
"""

DIES_AT_ONCE = """
import os
if os.environ.get("RANK") == "0":
    os.kill(os.getpid(), 9)
"""

MakeCluster = Callable[[int], Cluster]


def variables_of(cluster: Cluster, shared: Path, run: str) -> dict[str, str]:
    """Of launchers/hostfile.sh, without a look at the hosts first."""
    return {**places(shared, run), "HOSTFILE": str(cluster.hostfile()), "DOCTOR": "0"}


def start_with_hook(
    cluster: Cluster, shared: Path, run: str, hook: str, *arguments: str
) -> subprocess.Popen[str]:
    """Start a run whose processes execute something before all else."""
    (cluster.folder / "sitecustomize.py").write_text(hook)
    variables = variables_of(cluster, shared, run) | {"PYTHONPATH": str(cluster.folder)}
    command = ("bash", "launchers/hostfile.sh", *arguments)
    return cluster.start(cluster.hosts[0], *command, env=variables)


def start(
    cluster: Cluster, shared: Path, run: str, *settings: str, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a run on all hosts by launchers/hostfile.sh, and wait until it trains."""
    variables = variables_of(cluster, shared, run) | (env or {})
    arguments = ["bash", "launchers/hostfile.sh", "--set", *LONG, *settings]
    process = cluster.start(cluster.hosts[0], *arguments, env=variables)
    wait_for(lambda: process.poll() is not None or num_rows(shared / run) >= 3, 120)
    assert process.poll() is None, process.communicate()
    return process


def printed_at_the_end(process: subprocess.Popen[str], seconds: float) -> str:
    """The launcher ends in time with a failure; the last line that it shows."""
    started = time.monotonic()
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError(f"not ended: {process.communicate()}") from None
    assert process.returncode not in (0, 75), stdout + stderr
    print(f"ended after {time.monotonic() - started:.0f} s:\n{stderr[-3000:]}")
    return stderr.strip().splitlines()[-1]


def ranks_on(cluster: Cluster, host: Host) -> list[int]:
    """The ranks of a host, without their launchers."""
    return cluster.processes(host, "--local_rank=0")


def wait_until_nothing_trains(cluster: Cluster, seconds: float) -> None:
    wait_for(lambda: not any(ranks_on(cluster, host) for host in cluster.hosts), seconds)


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.long)])
def test_a_killed_rank_is_named(make_cluster: MakeCluster, shared: Path, victim: int) -> None:
    cluster = make_cluster(2)
    process = start(cluster, shared, f"killed-{victim}")
    os.kill(ranks_on(cluster, cluster.hosts[victim])[0], signal.SIGKILL)
    last = printed_at_the_end(process, 60)
    assert f"rank {victim} on node{victim + 1}" in last
    assert "killed" in last
    wait_until_nothing_trains(cluster, 10)


def test_a_rank_that_fails_has_the_last_word(make_cluster: MakeCluster, shared: Path) -> None:
    """A shard is damaged on the second host alone: its rank reports it, and all ranks end."""
    cluster = make_cluster(2)
    second = cluster.hosts[1]
    shard = next((shared / "data" / "seq64").glob("train-*.tar"))
    damaged = cluster.folder / "damaged.tar"
    damaged.write_bytes(bytes(shard.stat().st_size))
    cluster.run(second, "mount", "--bind", damaged, shard)
    variables = variables_of(cluster, shared, "damaged")
    process = cluster.start(cluster.hosts[0], "bash", "launchers/hostfile.sh", env=variables)
    last = printed_at_the_end(process, 120)
    assert "(rank 1 on node2)" in last
    assert shard.name in last
    wait_until_nothing_trains(cluster, 10)


@pytest.mark.parametrize("is_one_way", [False, True])
def test_a_cut_cable_ends_both_sides(
    make_cluster: MakeCluster, shared: Path, is_one_way: bool
) -> None:
    cluster = make_cluster(2)
    second = cluster.hosts[1]
    process = start(cluster, shared, f"cut-{is_one_way}", *(["heartbeat_s=10"] * is_one_way))
    if is_one_way:
        cluster.cut_what_it_sends(second)
    else:
        cluster.cut(second)
    last = printed_at_the_end(process, 60)
    assert "rank 1 on node2" in last
    assert "has sent no heartbeat for" in last
    assert "the network to it is down" in last
    wait_until_nothing_trains(cluster, 20)


@pytest.mark.long
def test_a_rank_that_is_stopped_is_named(make_cluster: MakeCluster, shared: Path) -> None:
    cluster = make_cluster(2)
    process = start(cluster, shared, "hung", "heartbeat_s=8")
    victim = ranks_on(cluster, cluster.hosts[1])[0]
    os.kill(victim, signal.SIGSTOP)
    wait_for(lambda: not ranks_on(cluster, cluster.hosts[0]), 30)
    os.kill(victim, signal.SIGCONT)  # it finds the others gone, and says so, too
    _, stderr = process.communicate(timeout=60)
    assert process.returncode not in (0, 75), stderr
    assert "(rank 1 on node2): the rank has sent no heartbeat for" in stderr


def test_a_stop_reaches_the_ranks_on_all_hosts(make_cluster: MakeCluster, shared: Path) -> None:
    cluster = make_cluster(2)
    process = start(cluster, shared, "stopped")
    (supervisor,) = cluster.processes(cluster.hosts[0], "supervise")
    os.kill(supervisor, signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75, stderr
    assert "stopped on request" in stderr
    assert summary_of(shared / "stopped")["status"] == "interrupted"
    wait_until_nothing_trains(cluster, 10)


@pytest.mark.long
def test_a_second_run_on_the_same_port_ends_and_leaves_the_first_alone(
    make_cluster: MakeCluster, shared: Path
) -> None:
    cluster = make_cluster(2)
    process = start(cluster, shared, "first")
    variables = variables_of(cluster, shared, "second")
    second = cluster.start(cluster.hosts[0], "bash", "launchers/hostfile.sh", env=variables)
    _, stderr = second.communicate(timeout=90)
    assert second.returncode not in (0, 75), stderr
    assert "rank 1 of 2: another run is at" in stderr
    before = num_rows(shared / "first")
    wait_for(lambda: num_rows(shared / "first") > before + 3, 30)
    assert process.poll() is None


@pytest.mark.long
def test_a_rank_0_that_is_killed_before_others_reach_it_is_named(
    make_cluster: MakeCluster, shared: Path
) -> None:
    cluster = make_cluster(2)
    process = start_with_hook(
        cluster, shared, "no-rank-0", DIES_AT_ONCE, "--set", "rendezvous_timeout_s=30"
    )
    last = printed_at_the_end(process, 90)  # the start included
    assert "(rank 1 on node2)" in last
    assert "rank 0, which keeps the store, has not come for 30 s (rendezvous_timeout_s)" in last
    wait_until_nothing_trains(cluster, 10)


@pytest.mark.long
def test_a_rank_that_dies_while_the_groups_are_made_is_named(
    make_cluster: MakeCluster, shared: Path
) -> None:
    """It has met the others: nobody waits for gloo's half an hour."""
    cluster = make_cluster(2)
    process = start_with_hook(cluster, shared, "half-met", DIES_AFTER_THE_RENDEZVOUS)
    last = printed_at_the_end(process, 90)
    assert "rank 1 on node2" in last
    wait_until_nothing_trains(cluster, 10)


def test_a_host_that_cannot_be_reached_is_named_before_anything_starts(
    make_cluster: MakeCluster, shared: Path
) -> None:
    cluster = make_cluster(2)
    cluster.stop_sshd(cluster.hosts[1])
    variables = {**places(shared, "unreached"), "HOSTFILE": str(cluster.hostfile())}
    process = cluster.start(cluster.hosts[0], "bash", "launchers/hostfile.sh", env=variables)
    last = printed_at_the_end(process, 60)
    assert "node2 cannot be reached: ssh: connect to host node2 port 22" in last
    assert not (shared / "unreached").exists()


def test_a_full_shared_disk_ends_all_and_keeps_the_last_checkpoint(
    make_cluster: MakeCluster, shared: Path
) -> None:
    runs = shared / "small-disk"
    runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", runs], check=True)
    try:
        cluster = make_cluster(2)
        process = start(cluster, shared, "small-disk/run", "checkpoint.every_steps=5")
        checkpoints = runs / "run" / "checkpoints"
        wait_for(lambda: (checkpoints / "latest").exists(), 60)
        with (runs / "other").open("wb", buffering=0) as file:  # somebody else fills the disk
            with pytest.raises(OSError, match="No space left"):
                while True:
                    file.write(bytes(1024))
        last = printed_at_the_end(process, 60)
        assert "space" in last
        saved = (checkpoints / "latest").read_text().strip()
        assert (checkpoints / saved / "weights.safetensors").exists()
        wait_until_nothing_trains(cluster, 10)
    finally:
        subprocess.run(["umount", "-l", runs], check=True)


@pytest.mark.long
def test_a_full_local_disk_is_logged_and_the_run_continues(
    make_cluster: MakeCluster, shared: Path
) -> None:
    cluster = make_cluster(2)
    for host in cluster.hosts:
        size = "size=8k" if host is cluster.hosts[1] else "size=80m"
        cluster.run(host, "sh", "-c", f"mkdir /run/c && mount -t tmpfs -o {size} tmpfs /run/c")
    variables = variables_of(cluster, shared, "local-disk")
    done = cluster.run(
        cluster.hosts[0], "bash", "launchers/hostfile.sh", "--set", "data.cache_dir=/run/c/cache",
        env=variables,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "node2: data.cache_dir: cannot copy shards to /run/c/cache" in done.stderr
    assert "No space left on device" in done.stderr
    assert "node1: data.cache_dir" not in done.stderr


def test_a_host_that_leaves_is_dropped_and_the_run_goes_on_with_the_same_result(
    make_cluster: MakeCluster, shared: Path, on_one_host: Path
) -> None:
    cluster = make_cluster(3)
    variables = variables_of(cluster, shared, "elastic")
    variables |= {"MAX_RESTARTS": "1", "DROP_LOST_HOSTS": "1"}
    settings = ("heartbeat_s=6", "checkpoint.every_steps=1")
    process = cluster.start(
        cluster.hosts[0], "bash", "launchers/hostfile.sh", "--set", *settings, env=variables
    )
    run = shared / "elastic"
    wait_for(lambda: (run / "checkpoints" / "latest").exists(), 90)
    cluster.end(cluster.hosts[2])
    _, stderr = process.communicate(timeout=150)
    assert process.returncode == 0, stderr
    assert "lost hosts (node3:" in stderr
    assert "training on node1, node2" in stderr
    assert_equal_to_one_host(run, on_one_host)
