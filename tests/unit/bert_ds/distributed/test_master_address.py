"""Where ranks meet when their launcher does not say."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from bert_ds.distributed.master_address import export_master_address, slurm_master_address
from bert_ds.distributed.world import World
from bert_ds.errors import LaunchError


@pytest.fixture(autouse=True)
def _no_meeting_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(key, raising=False)


def test_under_slurm_all_ranks_work_out_the_same() -> None:
    job = {"SLURM_STEP_NODELIST": "n7", "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "2"}
    host, port = slurm_master_address(job)
    assert host == "n7"
    assert 20_000 <= port < 30_000
    assert slurm_master_address({**job, "SLURM_STEP_ID": "3"})[1] != port


def test_a_list_of_hosts_is_for_scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "scontrol"
    program.write_text('#!/bin/sh\n[ "$3" = "n[07-09],m1" ] && printf "n07\\nn08\\nn09\\nm1\\n"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    job = {"SLURM_STEP_NODELIST": "n[07-09],m1", "SLURM_JOB_ID": "1"}
    assert slurm_master_address(job)[0] == "n07"
    with pytest.raises(subprocess.CalledProcessError):
        slurm_master_address({**job, "SLURM_STEP_NODELIST": "x[1-2]"})


@pytest.mark.parametrize(
    ("launcher", "message"),
    [
        ("torch", "must be exported: the address of the first host and a free port on it$"),
        ("slurm", "could not be found out: 'SLURM_STEP_NODELIST'"),
    ],
)
def test_what_cannot_be_found_out_is_to_be_exported(
    monkeypatch: pytest.MonkeyPatch, launcher: str, message: str
) -> None:
    monkeypatch.delenv("SLURM_STEP_NODELIST", raising=False)
    with pytest.raises(LaunchError, match=message):
        export_master_address(World(0, 4, 0, 4, launcher))


def test_one_rank_and_a_given_place_need_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    export_master_address(World(0, 1, 0, 1, "none"))
    assert "MASTER_ADDR" not in os.environ
    monkeypatch.setenv("MASTER_ADDR", "node1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    export_master_address(World(0, 4, 0, 4, "torch"))
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("node1", "29500")
