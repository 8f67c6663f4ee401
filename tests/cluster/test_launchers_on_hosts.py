"""Two hosts train by each launcher, with the losses of one host with two ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, start_slurm
from tests.support.commands import BIN
from tests.support.run_folders import num_rows, rows_of, summary_of

RENDEZVOUS = "node1:29511"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two hosts that all tests here share."""
    with Cluster(2, tmp_path_factory.mktemp("hosts")) as cluster:
        yield cluster


def places(shared: Path, run: str) -> dict[str, str]:
    """The variables of the scripts in launchers/."""
    return {
        "RECIPE": str(shared / "recipe"),
        "DATA": str(shared / "data"),
        "RUN": str(shared / run),
        "PYTHON": str(BIN / "python"),
    }


def assert_equal_to_one_host(run: Path, on_one_host: Path) -> None:
    losses, expected = ([row["loss"] for row in rows_of(folder)] for folder in (run, on_one_host))
    assert losses == pytest.approx(expected, rel=1e-5)
    assert summary_of(run)["status"] == "complete"
    assert summary_of(run)["world_size"] == 2


def test_deepspeed_over_pdsh(hosts: Cluster, shared: Path, on_one_host: Path) -> None:
    env = {**places(shared, "pdsh"), "HOSTFILE": str(hosts.hostfile())}
    done = hosts.run(hosts.hosts[0], "bash", "launchers/hostfile.sh", env=env)
    assert done.returncode == 0, done.stderr
    assert "every host sees what the first one writes" in done.stdout
    assert "2 ranks over gloo" in done.stdout
    assert_equal_to_one_host(shared / "pdsh", on_one_host)


@pytest.mark.parametrize(
    ("name", "mpiexec"),
    [
        ("open-mpi", "/usr/bin/mpirun.openmpi"),
        # on one host it is in CI, too
        pytest.param("mpich", str(BIN / "mpiexec"), marks=pytest.mark.long),
    ],
)
def test_mpiexec(hosts: Cluster, shared: Path, on_one_host: Path, name: str, mpiexec: str) -> None:
    env = {
        **places(shared, name),
        "MPIEXEC": mpiexec,
        "RANKS": "2",
        "HOSTS": "node1,node2",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    done = hosts.run(hosts.hosts[0], "bash", "launchers/mpi.sh", env=env)
    assert done.returncode == 0, done.stderr
    assert "2 ranks over gloo" in done.stdout
    assert_equal_to_one_host(shared / name, on_one_host)


def test_torchrun(hosts: Cluster, shared: Path, on_one_host: Path) -> None:
    env = {**places(shared, "torchrun"), "RANKS": "1", "HOSTS": "2", "RENDEZVOUS": RENDEZVOUS}
    started = [hosts.start(host, "bash", "launchers/torchrun.sh", env=env) for host in hosts.hosts]
    printed = [process.communicate(timeout=150) for process in started]
    assert [process.returncode for process in started] == [0, 0], printed
    assert sum("every host sees what the first one writes" in stdout for stdout, _ in printed) == 1
    assert_equal_to_one_host(shared / "torchrun", on_one_host)


def test_slurm(hosts: Cluster, shared: Path, on_one_host: Path) -> None:
    env = {**places(shared, "slurm"), **start_slurm(hosts)}
    log = shared / "slurm.log"
    done = hosts.run(
        hosts.hosts[0], "sbatch", "--wait", "--nodes", "2", "--ntasks-per-node", "1",
        "--output", log, "launchers/slurm.sbatch", env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + log.read_text()
    assert "every host sees what the first one writes" in log.read_text()
    assert_equal_to_one_host(shared / "slurm", on_one_host)


def test_a_slurm_job_that_is_asked_to_stop_goes_back_into_the_queue_and_goes_on(
    make_cluster, shared: Path
) -> None:
    cluster = make_cluster(2)
    slurm = start_slurm(cluster)
    first, log, run = cluster.hosts[0], shared / "requeued.log", shared / "requeued"
    done = cluster.run(
        first, "sbatch", "--parsable", "--nodes", "2", "--ntasks-per-node", "1", "--output", log,
        "launchers/slurm.sbatch", "--set", "phases.0.total_steps=100000",
        "checkpoint.every_steps=1000",
        env={**places(shared, "requeued"), **slurm, "DOCTOR": "0"},
    )  # fmt: skip
    job = done.stdout.strip()

    def state_of_job() -> str:
        asks = ("squeue", "--noheader", "--jobs", job, "-o", "%t")
        return cluster.run(first, *asks, env=slurm).stdout.strip()

    wait_for(lambda: num_rows(run) >= 3, 90)
    cluster.run(first, "scancel", "--signal=USR1", job, env=slurm)
    wait_for(lambda: summary_of(run)["status"] == "interrupted", 60)
    stopped_at = num_rows(run)
    assert "stopped on request" in log.read_text()
    wait_for(lambda: state_of_job() == "PD", 30)
    sooner = cluster.run(  # than after two minutes; but not before its old credential has gone
        first, "scontrol", "update", f"JobId={job}", "StartTime=now+10", env=slurm
    )
    assert sooner.returncode == 0, sooner.stderr
    wait_for(lambda: num_rows(run) >= stopped_at + 3, 120)  # the same job, from its checkpoint
    assert [row["global_step"] for row in rows_of(run)] == list(range(1, num_rows(run) + 1))
    assert state_of_job() == "R"


def wait_for(condition, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.2)


def test_shards_over_mpiexec_are_those_of_one_process(hosts: Cluster, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(
        "\n\n".join(
            "\n".join(f"Sentence {line} of document {number} has words." for line in range(8))
            for number in range(300)
        )
    )
    prep = [str(BIN / "python"), "-m", "data_prep"]
    first = hosts.hosts[0]
    vocabulary = tmp_path / "vocab.txt"
    done = hosts.run(first, *prep, "vocab", "--input", text, "--vocab-size", "120",
                     "--output", vocabulary)  # fmt: skip
    assert done.returncode == 0, done.stderr
    shards = ["shards", "--input", text, "--vocab", vocabulary, "--sequence-length", "64", "128"]
    alone = hosts.run(first, *prep, *shards, "--output-dir", tmp_path / "alone")
    assert alone.returncode == 0, alone.stderr
    done = hosts.run(
        first, BIN / "mpiexec", "-hosts", "node1,node2", "-n", "4", *prep, *shards,
        "--output-dir", tmp_path / "hosts",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = files_below(tmp_path / "alone")
    assert len(expected) >= 6
    assert files_below(tmp_path / "hosts") == expected


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
