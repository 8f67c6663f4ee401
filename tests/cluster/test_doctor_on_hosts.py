"""What the doctor finds where one host differs from the other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")

MakeCluster = Callable[[int], Cluster]


def findings(cluster: Cluster, shared: Path, code: int) -> dict[str, dict[str, Any]]:
    """What the doctor says on the first host about all, by subject; the worst of a subject."""
    done = cluster.run(
        cluster.hosts[0], "bert-ds", "doctor", "--hostfile", cluster.hostfile(), "--recipe",
        shared / "recipe", "--data", shared / "data", "--output-dir", shared / "run", "--json",
    )  # fmt: skip
    assert done.returncode == code, done.stderr + done.stdout
    found = json.loads(done.stdout)
    assert found["is_ready"] == (code == 0)
    order = ["ok", "warning", "error"]
    ordered = sorted(found["findings"], key=lambda entry: order.index(entry["level"]))
    return {entry["subject"]: entry for entry in ordered}


def test_another_version_on_one_host_is_an_error(make_cluster: MakeCluster, shared: Path) -> None:
    cluster = make_cluster(2)
    entry = next(f for f in metadata.files("safetensors") or () if f.name == "METADATA")
    original = Path(str(entry.locate()))
    other = cluster.folder / "METADATA"
    present = metadata.version("safetensors")
    other.write_text(original.read_text().replace(f"Version: {present}", "Version: 0.0.1", 1))
    cluster.run(cluster.hosts[1], "mount", "--bind", other, original)
    found = findings(cluster, shared, code=1)
    assert found["versions"]["level"] == "error"
    expected = f"safetensors differs: {present} on node1; 0.0.1 on node2"
    assert found["versions"]["message"] == expected
    assert "all-reduce" not in found  # nothing is started where hosts differ


def test_other_data_and_a_folder_that_is_not_shared_are_errors(
    make_cluster: MakeCluster, shared: Path
) -> None:
    cluster = make_cluster(2)
    mine = cluster.folder / "not-shared"
    shutil.copytree(shared, mine, ignore=shutil.ignore_patterns("seq64"))
    cluster.run(cluster.hosts[1], "mount", "--bind", mine, shared)
    found = findings(cluster, shared, code=1)
    assert found["shared folder"]["level"] == "error"
    assert "node2 does not see what node1 writes" in found["shared folder"]["message"]
    assert found["dataset seq32"]["level"] == "ok"
    assert found["dataset seq64"]["level"] == "error"
    assert "(on node2)" in found["dataset seq64"]["message"]


def test_a_clock_that_is_off_is_a_warning(make_cluster: MakeCluster, shared: Path) -> None:
    if not FAKETIME.exists():
        pytest.skip("needs Debian's libfaketime")
    cluster = make_cluster(2)
    second = cluster.hosts[1]
    cluster.stop_sshd(second)
    variables = f"SetEnv LD_PRELOAD={FAKETIME} FAKETIME=+90s"
    cluster.start_sshd(second, "-o", variables)
    found = findings(cluster, shared, code=0)
    assert found["clocks"]["level"] == "warning"
    assert "node2 is 90 s ahead of node1" in found["clocks"]["message"]
    assert "chrony" in found["clocks"]["way_out"]
    assert found["all-reduce"]["level"] == "ok"


def test_an_interface_that_a_host_does_not_have_is_an_error(
    make_cluster: MakeCluster, shared: Path
) -> None:
    cluster = make_cluster(2)
    second = cluster.hosts[1]
    cluster.stop_sshd(second)
    cluster.start_sshd(second, "-o", "SetEnv GLOO_SOCKET_IFNAME=ib0")
    found = findings(cluster, shared, code=1)
    assert "GLOO_SOCKET_IFNAME is ib0 on node2, which has eth0" in found["network"]["message"]


def test_a_host_under_two_names_is_an_error(make_cluster: MakeCluster, shared: Path) -> None:
    cluster = make_cluster(2)
    hostfile = cluster.folder / "twice"
    hostfile.write_text("node2 slots=1\n10.77.0.2 slots=1\n")
    done = cluster.run(cluster.hosts[0], "bert-ds", "doctor", "--hostfile", hostfile)
    assert done.returncode == 1
    assert "node2 and 10.77.0.2 are the same host (node2)" in done.stderr
