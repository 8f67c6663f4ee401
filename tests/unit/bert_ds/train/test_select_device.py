"""Where a rank computes, and with how many threads."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from bert_ds.distributed.world import World
from bert_ds.train.setup import select_device


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("local_world_size", "expected"), [(1, 8), (3, 2), (16, 1)])
def test_the_cores_of_a_host_are_shared_among_its_ranks(
    monkeypatch: pytest.MonkeyPatch, local_world_size: int, expected: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    world = World(0, local_world_size, 0, local_world_size, "test")
    assert select_device(world) == torch.device("cpu")
    assert torch.get_num_threads() == expected


def test_a_number_of_threads_that_is_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    torch.set_num_threads(3)
    select_device(World(0, 1, 0, 1, "test"))
    assert torch.get_num_threads() == 3
