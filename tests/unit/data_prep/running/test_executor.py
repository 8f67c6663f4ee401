"""Executors: every item once, errors as they were raised, workers that die."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pytest

from data_prep.contract.errors import DataPrepError, InputError, UsageError
from data_prep.running.executor import (
    CLAIMS_NAME,
    ProcessExecutor,
    SerialExecutor,
    Stage,
    make_executor,
    mpi_size,
    was_running,
)
from data_prep.running.mpi_executor import MpiExecutor


class Folder(NamedTuple):
    """A job that is nothing but its work folder."""

    work: Path


def touch(job: Folder, item: int) -> None:
    (job.work / str(item)).write_text(str(os.getpid()), encoding="utf-8")


def fail(job: Folder, item: int) -> None:
    raise InputError(f"item {item}")


def die(job: Folder, item: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("executor", [SerialExecutor(), ProcessExecutor(2)], ids=["serial", "two"])
def test_every_item_is_done_once(executor: SerialExecutor, tmp_path: Path) -> None:
    done: list[int] = []
    with executor:
        executor.run(Stage(touch, Folder(tmp_path), list(range(7)), done.append))
        executor.run(Stage(touch, Folder(tmp_path), [7, 8], done.append))
    assert sorted(done) == list(range(9))
    assert was_running(tmp_path) == []
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert len(files) == 9
    writers = {path.read_text(encoding="utf-8") for path in files}
    assert (str(os.getpid()) in writers) == (executor.size == 1)


def name_process(job: Folder, item: int) -> None:
    kind = type(multiprocessing.current_process()).__name__
    (job.work / str(item)).write_text(kind, encoding="utf-8")


def test_processes_are_spawned_never_forked(tmp_path: Path) -> None:
    # A fork after the tokeniser's thread pool started hangs.
    with ProcessExecutor(2) as executor:
        executor.run(Stage(name_process, Folder(tmp_path), [1, 2], lambda item: None))
    kinds = {(tmp_path / str(item)).read_text(encoding="utf-8") for item in (1, 2)}
    assert kinds == {"SpawnProcess"}


@dataclass(frozen=True)
class Counting:
    """A job that counts in each process how many items it has seen; not sent with a task."""

    work: Path
    key: int

    def __getstate__(self) -> dict[str, object]:
        return {"work": self.work, "key": self.key}

    @cached_property
    def seen(self) -> list[int]:
        return []


def note(job: Counting, item: int) -> None:
    job.seen.append(item)
    (job.work / f"{job.key}-{item}").write_text(str(len(job.seen)), encoding="utf-8")


def test_a_process_keeps_its_job_until_another_one_comes(tmp_path: Path) -> None:
    with ProcessExecutor(1) as executor:
        for key, items in ((1, [1, 2]), (1, [3]), (2, [1])):
            executor.run(Stage(note, Counting(tmp_path, key), items, lambda item: None))
    found = [(tmp_path / name).read_text(encoding="utf-8") for name in ("1-1", "1-2", "1-3", "2-1")]
    assert found == ["1", "2", "3", "1"]


def test_an_error_in_a_process_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="item"), ProcessExecutor(2) as executor:
        executor.run(Stage(fail, Folder(tmp_path), [1, 2, 3], lambda item: None))


def test_a_process_that_is_killed_is_reported_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(
        DataPrepError, match=r"worker process died.*at work on.*item [12] of a\.txt.*smaller -j"
    ):
        with ProcessExecutor(2) as executor:
            executor.run(
                Stage(die, Folder(tmp_path), [1, 2], lambda item: None, "item {} of a.txt".format)
            )
    assert was_running(tmp_path)[0].endswith("of a.txt")


def squared(item: int) -> int:
    if item < 0:
        raise InputError(f"item {item}")
    if item > 100:
        os.kill(os.getpid(), signal.SIGKILL)
    return item * item


@pytest.mark.parametrize("executor", [SerialExecutor(), ProcessExecutor(2)], ids=["serial", "two"])
def test_results_come_in_the_order_of_their_items(executor: SerialExecutor) -> None:
    done: list[int] = []
    with executor:
        assert executor.gather(squared, range(20), done.append) == [n * n for n in range(20)]
        assert executor.gather(squared, [], done.append) == []
        with pytest.raises(InputError, match="item -3"):
            executor.gather(squared, [1, -3], done.append)
    assert sorted(done)[:20] == sorted([*range(20), *done[20:]])[:20]


def test_a_process_that_is_killed_while_results_are_gathered_is_reported() -> None:
    with pytest.raises(DataPrepError, match="worker process died"), ProcessExecutor(2) as executor:
        executor.gather(squared, [1, 101], lambda item: None)


class Shared:
    """What ranks share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=20)
        self.values: list[object] = [None] * size


class Rank:
    """What `MpiExecutor` asks of a communicator, between threads of this process."""

    def __init__(self, rank: int, shared: Shared) -> None:
        self._rank, self._shared = rank, shared

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return self._shared.size

    def bcast(self, value: object, root: int) -> object:
        return self.allgather(value)[root]

    def scatter(self, values: list[object] | None, root: int) -> object:
        shared = self.bcast(values, root)
        assert isinstance(shared, list)
        return shared[self._rank]

    def gather(self, value: object, root: int) -> list[object] | None:
        everything = self.allgather(value)
        return everything if self._rank == root else None

    def allgather(self, value: object) -> list[object]:
        self._shared.barrier.wait()
        self._shared.values[self._rank] = value
        self._shared.barrier.wait()
        return list(self._shared.values)


def on_ranks(size: int, work: Callable[[MpiExecutor], object]) -> list[object]:
    """Calls `work` on every rank; what it returns or raises, by rank."""
    shared = Shared(size)

    def one(rank: int) -> object:
        try:
            return work(MpiExecutor(Rank(rank, shared)))
        except DataPrepError as err:
            return err

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def test_ranks_share_the_items_and_the_root_counts_all(tmp_path: Path) -> None:
    done: list[int] = []
    by_rank: list[list[int]] = [[], [], []]

    def work(executor: MpiExecutor) -> None:
        rank = executor._communicator.Get_rank()

        def count(job: Folder, item: int) -> None:
            by_rank[rank].append(item)
            time.sleep(0.05 if rank == 0 else 0.001)  # the others need not wait for it

        for items in (list(range(30)), [30, 31]):
            executor.run(Stage(count, Folder(tmp_path), items, done.append))

    on_ranks(3, work)
    assert sorted(item for items in by_rank for item in items) == list(range(32))
    assert sorted(done) == list(range(32))
    assert len(by_rank[0]) < 15
    assert list((tmp_path / CLAIMS_NAME).iterdir()) == []


def test_all_ranks_raise_an_error_and_take_no_further_item(tmp_path: Path) -> None:
    met: list[int] = []

    def fail_at_two(job: Folder, item: int) -> None:
        met.append(item)
        time.sleep(0.02)
        if item == 2:
            raise InputError("item 2")

    stage = Stage(fail_at_two, Folder(tmp_path), list(range(100)), met.append)
    found = on_ranks(2, lambda executor: executor.run(stage))
    assert [str(error) for error in found] == ["item 2", "item 2"]
    assert max(met) < 20

    def root_fails(executor: MpiExecutor) -> object:
        def fail_on_root() -> None:
            raise InputError("root")

        return executor.on_root(fail_on_root)

    assert [str(error) for error in on_ranks(2, root_fails)] == ["root", "root"]
    assert on_ranks(2, lambda executor: executor.on_root(lambda: 5)) == [5, 5]


@pytest.mark.parametrize("count", [0, 1, 3, 7, 30])
def test_the_root_gets_the_results_of_all_ranks_in_order(count: int) -> None:
    done: list[int] = []
    own: list[list[int]] = [[], [], []]

    def work(executor: MpiExecutor) -> list[int]:
        rank = executor._communicator.Get_rank()

        def noted(item: int) -> int:
            own[rank].append(item)
            return item * item

        items = list(range(count)) if executor.is_root else []
        return executor.gather(noted, items, done.append)

    assert on_ranks(3, work) == [[item * item for item in range(count)], [], []]
    assert sorted(item for items in own for item in items) == list(range(count))
    assert max(map(len, own)) - min(map(len, own)) <= 1
    assert done == own[0]


def test_all_ranks_raise_the_error_that_one_has_gathering_results() -> None:
    def work(executor: MpiExecutor) -> list[int]:
        return executor.gather(
            squared, [1, 2, -7, 4] if executor.is_root else [], lambda item: None
        )

    assert [str(error) for error in on_ranks(3, work)] == ["item -7"] * 3


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
