"""Ranks out of the environment of each launcher."""

from __future__ import annotations

import pytest

from bert_ds.distributed import world as world_module
from bert_ds.distributed.world import World, world_from_environment
from bert_ds.errors import LaunchError


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, World(0, 1, 0, 1, "none")),
        (
            {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
            World(5, 8, 1, 4, "torch"),
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"},
            World(1, 2, 1, 2, "torch"),
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            },
            World(3, 4, 1, 2, "openmpi"),
        ),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
            World(1, 2, 1, 2, "mpich"),
        ),
        (
            {
                "SLURM_PROCID": "9",
                "SLURM_STEP_NUM_TASKS": "64",
                "SLURM_LOCALID": "1",
                "SLURM_STEP_TASKS_PER_NODE": "8(x8)",
            },
            World(9, 64, 1, 8, "slurm"),
        ),
        # a batch script's own environment is no task of a step
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, World(0, 1, 0, 1, "none")),
    ],
)
def test_each_launchers_variables_are_understood(
    environment: dict[str, str], expected: World
) -> None:
    assert world_from_environment(environment) == expected


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK must be a number, it is 'x'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, r"RANK \(2\) must be at least 0 and below WORLD_SIZE"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "MPI_LOCALRANKID is not"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set and RANK is not"),
        ({"RANK": "1"}, "RANK is set and WORLD_SIZE is not"),
    ],
)
def test_a_broken_environment_is_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        world_from_environment(environment)


def test_messages_name_the_host_where_there_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_module.socket, "gethostname", lambda: "node2")
    assert World(1, 2, 1, 2, "torch").name == "rank 1"
    assert World(1, 2, 0, 1, "torch").name == "rank 1 on node2"
