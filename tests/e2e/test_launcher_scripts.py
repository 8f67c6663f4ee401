"""The scripts in launchers/: what they would run, what they refuse, and one of them for real."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from bert_ds.meeting import free_port
from tests.support.commands import ROOT, run
from tests.support.run_folders import rows_of

pytestmark = pytest.mark.slow

PLACES = {"RECIPE": "recipe folder", "DATA": "/data", "RUN": "/run"}
TRAINS = "pretrain --recipe 'recipe folder' --data /data --output-dir /run --dry-run"


def start_script(name: str, *arguments: str, **variables: str):
    return run("bash", ROOT / "launchers" / name, *arguments, env=variables)


@pytest.mark.parametrize(
    ("name", "variables", "expected"),
    [
        ("local.sh", {}, f"deepspeed --quiet --module bert_ds {TRAINS}"),
        (
            "local.sh",
            {"RANKS": "2", "MASTER_PORT": "7"},
            f"deepspeed --quiet --num_accelerators 2 --master_port 7 --module bert_ds {TRAINS}",
        ),
        (
            "hostfile.sh",
            {"HOSTFILE": "launchers/hosts.example", "MASTER_ADDR": "node1"},
            "deepspeed --quiet --hostfile launchers/hosts.example --launcher pdsh --master_addr "
            f"node1 --module bert_ds {TRAINS}",
        ),
        ("mpi.sh", {"RANKS": "4"}, f"mpiexec -n 4 python3 -m bert_ds {TRAINS}"),
        (
            "torchrun.sh",
            {"RANKS": "8", "HOSTS": "2", "RENDEZVOUS": "node1:29500"},
            "torchrun --nproc_per_node 8 --nnodes 2 --rdzv_backend c10d --rdzv_endpoint "
            f"node1:29500 --rdzv_id bert_ds -m bert_ds {TRAINS}",
        ),
        ("slurm.sbatch", {}, f"srun --kill-on-bad-exit=1 python3 -m bert_ds {TRAINS}"),
    ],
)
def test_a_dry_run_prints_the_command(name: str, variables: dict[str, str], expected: str) -> None:
    done = start_script(name, "--dry-run", DRY_RUN="1", **PLACES, **variables)
    assert done.returncode == 0, done.stderr
    assert shlex.split(done.stdout) == shlex.split(expected)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing or empty; a line a host: node1 slots=8"),
        ("", "is missing or empty"),
        ("node1 slots=8\nnode2\n", "a line must be like 'node1 slots=8'; this is not: node2"),
        ("node1 slots=0\n", "this is not: node1 slots=0"),
        ("node1 slots=4\n# old\nnode1 slots=4\n", "names node1 twice; add its slots up in one"),
    ],
)
def test_a_wrong_hostfile_is_told_before_anything_starts(
    tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "hosts").write_text(content)
    done = start_script("hostfile.sh", HOSTFILE=str(tmp_path / "hosts"), DRY_RUN="1", **PLACES)
    assert done.returncode == 2
    assert message in done.stderr


def test_what_is_not_said_is_asked_for() -> None:
    done = start_script("local.sh", RECIPE="r", DATA="d")
    assert done.returncode != 0
    assert "RUN: the run folder" in done.stderr


def test_local_trains(tiny_recipe_folder: Path, tiny_data: Path, tmp_path: Path) -> None:
    places = {"RECIPE": str(tiny_recipe_folder), "DATA": str(tiny_data), "RUN": str(tmp_path / "r")}
    settings = ["--set", "phases.0.total_steps=2", "phases.1.total_steps=1"]
    done = start_script("local.sh", *settings, RANKS="2", MASTER_PORT=str(free_port()), **places)
    assert done.returncode == 0, done.stderr
    assert len(rows_of(tmp_path / "r")) == 3
