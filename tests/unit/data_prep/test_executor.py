"""Executors: every item once, errors as they were raised, workers that die."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from data_prep.errors import DataPrepError, InputError, UsageError
from data_prep.executor import (
    MpiExecutor,
    ProcessExecutor,
    SerialExecutor,
    make_executor,
    mpi_size,
)


def touch(work: Path, item: int) -> None:
    (work / str(item)).write_text(str(os.getpid()), encoding="utf-8")


def fail(work: Path, item: int) -> None:
    raise InputError(f"item {item}")


def die(work: Path, item: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("executor", [SerialExecutor(), ProcessExecutor(2)], ids=["serial", "two"])
def test_every_item_is_done_once(executor: SerialExecutor, tmp_path: Path) -> None:
    done: list[int] = []
    with executor:
        executor.run(touch, tmp_path, list(range(7)), done.append)
        executor.run(touch, tmp_path, [7, 8], done.append)
    assert sorted(done) == list(range(9))
    writers = {path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert (str(os.getpid()) in writers) == (executor.size == 1)


def test_an_error_in_a_process_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="item"), ProcessExecutor(2) as executor:
        executor.run(fail, tmp_path, [1, 2, 3], lambda item: None)


def test_a_process_that_is_killed_is_reported_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(DataPrepError, match=r"worker process died.*smaller -j"):
        with ProcessExecutor(2) as executor:
            executor.run(die, tmp_path, [1, 2], lambda item: None)


class FakeRank:
    """What `MpiExecutor` asks of a communicator, for one rank that hears itself alone."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self.others: list[DataPrepError | None] = []

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return self._size

    def bcast(self, value: object, root: int) -> object:
        return value

    def allgather(self, value: object) -> list[object]:
        return [*self.others, value]


def test_ranks_share_the_items_and_all_hear_of_an_error(tmp_path: Path) -> None:
    done: list[int] = []
    for rank in range(3):
        MpiExecutor(FakeRank(rank, 3)).run(touch, tmp_path, list(range(8)), done.append)
    assert sorted(done) == list(range(8))
    communicator = FakeRank(1, 2)
    communicator.others = [InputError("on rank 0")]
    with pytest.raises(InputError, match="on rank 0"):
        MpiExecutor(communicator).run(touch, tmp_path, [1, 2], done.append)

    def root_fails() -> None:
        raise InputError("root")

    with pytest.raises(InputError, match="root"):
        MpiExecutor(FakeRank(0, 2)).on_root(root_fails)
    assert MpiExecutor(FakeRank(0, 2)).on_root(lambda: 5) == 5


def test_the_executor_follows_j_and_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    assert type(make_executor(1, {})) is SerialExecutor
    assert make_executor(3, {}).size == 3
    assert make_executor(None, {}).size == len(os.sched_getaffinity(0))
    assert mpi_size({}) == 1
    assert mpi_size({"OMPI_COMM_WORLD_SIZE": "4"}) == 4
    assert mpi_size({"SLURM_STEP_NUM_TASKS": "8", "PMI_SIZE": "8"}) == 8
    with pytest.raises(UsageError, match="-j 0: must be at least 1"):
        make_executor(0, {})
    with pytest.raises(UsageError, match="each of the 4 ranks is one worker"):
        make_executor(2, {"PMI_SIZE": "4"})


def test_mpi_without_its_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(UsageError, match=r"pip install mpi4py"):
        make_executor(None, {"PMI_SIZE": "2"})
