"""The small collectives on real gloo ranks."""

from __future__ import annotations

from pathlib import Path

import torch

from bert_ds.distributed.communicator import Communicator
from bert_ds.distributed.world import World
from bert_ds.errors import DataError, PeerError
from tests.support.ranks import run_on_ranks


def collectives(world: World) -> tuple[list[int], list[bool], str, list[float], list[list[int]]]:
    comm = Communicator(world, torch.device("cpu"))
    return (
        comm.all_reduce_ints([world.rank, 10]),
        [comm.any_rank(world.rank == 2), comm.any_rank(False)],
        comm.broadcast_text(f"from rank {world.rank}" if world.is_main else None),
        comm.all_reduce(torch.tensor([0.5, float(world.rank)])).tolist(),
        ahead_of_the_others(comm, world),
    )


def ahead_of_the_others(comm: Communicator, world: World) -> list[list[int]]:
    """A rank begins before the others have come, which exchange something else meanwhile."""
    if world.rank == 0:
        waits = [comm.begin_sum([1, 2]), comm.begin_max([5])]
        comm.all_reduce_ints([0])
    else:
        comm.all_reduce_ints([0])
        waits = [comm.begin_sum([1, 2]), comm.begin_max([5 + world.rank])]
    return [wait() for wait in waits]


def failing_on_some_ranks(world: World) -> str:
    comm = Communicator(world, torch.device("cpu"))

    def action() -> int:
        if world.rank > 0:
            raise DataError(f"shard missing on rank {world.rank}")
        return 5

    assert comm.run_on_all_ranks(lambda: world.rank * 2) == world.rank * 2
    try:
        comm.run_on_all_ranks(action)
    except DataError as err:
        return str(err)
    except PeerError as err:
        return f"peer {err.failed_rank}"
    return "no error"


def shares(world: World) -> list[tuple[int, int]]:
    comm = Communicator(world, torch.device("cpu"))
    return [comm.among_equals(7), comm.among_equals(world.rank % 2), comm.among_equals(world.rank)]


def test_ranks_find_their_place_among_those_with_the_same_number(tmp_path: Path) -> None:
    assert run_on_ranks(3, shares, tmp_path) == [
        [(0, 3), (0, 2), (0, 1)],
        [(1, 3), (0, 1), (0, 1)],
        [(2, 3), (1, 2), (0, 1)],
    ]


def test_sums_flags_and_texts_are_the_same_on_every_rank(tmp_path: Path) -> None:
    expected = ([3, 30], [True, False], "from rank 0", [1.5, 3.0], [[3, 6], [7]])
    assert run_on_ranks(3, collectives, tmp_path) == [expected] * 3


def test_what_fails_on_some_ranks_fails_on_all_and_is_reported_once(tmp_path: Path) -> None:
    assert run_on_ranks(3, failing_on_some_ranks, tmp_path) == [
        "peer 1",
        "shard missing on rank 1",
        "peer 1",
    ]
