"""Reader processes: the same batches, errors where they are due, and nothing left behind."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch

from bert_ds.config.batch import BatchPlan
from bert_ds.data.order import RowOrder
from bert_ds.data.processes import ReaderProcesses
from bert_ds.data.reader import open_dataset
from bert_ds.data.rows import StreamSpec
from bert_ds.data.stream import Prefetcher, RankUpdate, TrainStream
from bert_ds.errors import DataError
from data_prep.contract.masking import MaskingKind
from tests.support.datasets import make_dataset

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def unmasked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unmasked")
    make_dataset(folder, num_train=100, is_masked=False)
    return folder


def spec_of(
    folder: Path,
    *,
    rank: int = 0,
    world_size: int = 1,
    dynamic_masking: MaskingKind | None = None,
    cache_dir: Path | None = None,
) -> StreamSpec:
    batch = BatchPlan(8, 2, 4 // world_size, world_size)
    return StreamSpec(folder, open_dataset(folder), 5, batch, rank, dynamic_masking, cache_dir)


def children() -> set[int]:
    """Processes that this one has started and that are not gone."""
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pids: set[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a reader process outlives its parent"
        time.sleep(0.02)


def shared_memory_of(pid: int) -> set[str]:
    """Files in shared memory that a process maps: what a kill would leave behind."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[-1] for line in maps if "/dev/shm/" in line}


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """The test leaves no processes and maps no shared memory."""
    processes, shared = children(), shared_memory_of(os.getpid())
    yield
    assert children() == processes
    assert shared_memory_of(os.getpid()) <= shared


def same(a: torch.Tensor | int, b: torch.Tensor | int) -> bool:
    if isinstance(a, int) or isinstance(b, int):
        return a == b
    return torch.equal(a, b) and a.dtype == b.dtype


def assert_same(a: RankUpdate, b: RankUpdate) -> None:
    assert (a.position, a.micro_positions) == (b.position, b.micro_positions)
    assert a.num_tokens == b.num_tokens
    for x, y in zip(a.micro_batches, b.micro_batches, strict=True):
        assert all(same(p, q) for p, q in zip(x, y, strict=True))


@pytest.mark.parametrize("kind", ["token", "whole_word", None])
def test_batches_are_the_same_bit_for_bit_for_any_number_of_processes(
    unmasked: Path, tmp_path: Path, kind: MaskingKind | None, nothing_is_left: None
) -> None:
    folder = unmasked
    if kind is None:
        folder = tmp_path
        make_dataset(folder, num_train=100)
    spec = spec_of(folder, rank=1, world_size=2, dynamic_masking=kind)
    start = 64  # the first epoch ends in the fifth update, at 100 rows
    here = list(islice(TrainStream(spec).updates(start), 20))
    for count in (1, 2):
        stream = TrainStream(spec, count)
        for expected, found in zip(here, stream.updates(start), strict=False):
            assert_same(found, expected)
        stream.close()
    if kind is not None:
        assert all(len(batch.masked_lm_ids) for update in here for batch in update.micro_batches)


def test_prefetched_batches_of_processes_are_those_of_the_thread(
    unmasked: Path, nothing_is_left: None
) -> None:
    spec = spec_of(unmasked, dynamic_masking="token")
    here = TrainStream(spec).updates(0)
    stream = TrainStream(spec, 2)
    ahead = Prefetcher(stream.updates(0))
    for expected, found in zip(islice(here, 12), ahead, strict=False):
        assert_same(found, expected)
    stream.close()
    ahead.close()
    assert not ahead._thread.is_alive()


def test_an_error_in_a_process_comes_out_where_it_is_due_and_names_shard_and_block(
    tmp_path: Path, nothing_is_left: None
) -> None:
    manifest = make_dataset(tmp_path, num_train=4096, rows_per_block=128)
    spec = spec_of(tmp_path)
    here = TrainStream(spec)
    blocks = [(s.file, block) for s in manifest.shards("train") for block in s.blocks]
    order = RowOrder([block.count for _, block in blocks], spec.seed)
    in_third_window = next(order.slices(2500, 2501)).blocks[3]
    file, block = blocks[in_third_window]
    path = tmp_path / file
    content = bytearray(path.read_bytes())
    content[block.offset + block.size // 2] ^= 1
    path.write_bytes(content)

    def read_until_error(stream: TrainStream) -> tuple[int, str]:
        count = 0
        with pytest.raises(DataError) as told:
            for _ in stream.updates(0):
                count += 1
        stream.close()
        return count, str(told.value)

    count, message = read_until_error(here)
    assert f"{path} at byte {block.offset}" in message
    assert count == 2048 // 8
    for processes in (1, 2):
        assert read_until_error(TrainStream(spec, processes)) == (count, message)


def test_a_process_that_is_killed_is_told_with_its_signal(
    unmasked: Path, nothing_is_left: None
) -> None:
    before = children()
    stream = TrainStream(spec_of(unmasked, dynamic_masking="token"), 2)
    updates = stream.updates(0)
    next(updates)
    for pid in children() - before:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(
        DataError, match=r"reader process \d of 2 \(pid \d+\) was ended by signal 9"
    ):
        list(islice(updates, 1000))
    stream.close()


def test_signals_to_the_process_group_leave_the_processes_at_work(
    unmasked: Path, nothing_is_left: None
) -> None:
    before = children()
    stream = TrainStream(spec_of(unmasked, dynamic_masking="token"), 2)
    updates = stream.updates(0)
    for pid in children() - before:  # at once: also while they start
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.kill(pid, number)
    assert len(list(islice(updates, 50))) == 50
    stream.close()


def test_closing_takes_no_long_time_while_a_process_waits_for_its_file_system(
    tmp_path: Path, nothing_is_left: None
) -> None:
    make_dataset(tmp_path / "data")
    spec = spec_of(tmp_path / "data")
    for shard in spec.manifest.shards("train"):  # opening a pipe that nobody writes takes for ever
        (tmp_path / "data" / shard.file).unlink()
        os.mkfifo(tmp_path / "data" / shard.file)
    stream = TrainStream(spec, 2)
    ahead = Prefetcher(stream.updates(0))
    time.sleep(1.0)
    started = time.monotonic()
    stream.close()
    ahead.close()
    assert time.monotonic() - started < 5
    assert not ahead._thread.is_alive()


def test_closing_while_another_thread_waits_ends_its_iteration(
    unmasked: Path, nothing_is_left: None
) -> None:
    processes = ReaderProcesses(spec_of(unmasked, dynamic_masking="token"), 0, 1)
    found: list[object] = []
    reading = threading.Thread(target=lambda: found.extend(processes))
    reading.start()
    while not found:
        time.sleep(0.01)
    processes.close()
    reading.join(10)
    assert not reading.is_alive()


PARENT = """
import sys, time
from pathlib import Path
from bert_ds.data.stream import TrainStream
from tests.unit.bert_ds.data.test_processes import children, spec_of

updates = TrainStream(spec_of(Path(sys.argv[1]), dynamic_masking="token"), 2).updates(0)
next(updates)
print(*children(), flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["time.sleep(600)", "import os; os._exit(75)", "raise SystemExit"])
def test_the_processes_end_with_their_parent_however_it_ends(unmasked: Path, end: str) -> None:
    command = [sys.executable, "-c", PARENT.format(end=end), str(unmasked)]
    root = Path(__file__).parents[4]
    with subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None and parent.stderr is not None
        readers = {int(pid) for pid in parent.stdout.readline().split()}
        assert len(readers) == 2
        if "sleep" in end:
            assert all(is_alive(pid) for pid in readers)
            assert not any(shared_memory_of(pid) for pid in readers)
            parent.kill()
        parent.wait(30)
        wait_until_gone(readers, 10)
        assert parent.stderr.read() == ""  # they end without a word


WAITING_PARENT = """
import os, sys, time
from pathlib import Path
from bert_ds.data.stream import TrainStream
from tests.unit.bert_ds.data.test_processes import children, spec_of

folder = Path(sys.argv[1])
spec = spec_of(folder)
for shard in spec.manifest.shards("train"):  # opening a pipe that nobody writes takes for ever
    (folder / shard.file).unlink()
    os.mkfifo(folder / shard.file)
stream = TrainStream(spec, 2)
updates = stream.updates(0)
time.sleep(2)  # until the processes have come so far
print(*children(), flush=True)
time.sleep(600)
"""


def test_processes_that_wait_for_their_file_system_end_with_a_killed_parent(tmp_path: Path) -> None:
    make_dataset(tmp_path)
    command = [sys.executable, "-c", WAITING_PARENT, str(tmp_path)]
    root = Path(__file__).parents[4]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        readers = {int(pid) for pid in parent.stdout.readline().split()}
        assert len(readers) == 2
        parent.kill()
        parent.wait(30)
        wait_until_gone(readers, 10)


def test_what_a_process_logs_is_logged_once_by_its_parent(
    unmasked: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, nothing_is_left: None
) -> None:
    (tmp_path / "file").write_text("")
    spec = spec_of(unmasked, dynamic_masking="token", cache_dir=tmp_path / "file" / "cache")
    stream = TrainStream(spec, 2)
    with caplog.at_level(logging.WARNING):
        assert len(list(islice(stream.updates(0), 6))) == 6
    stream.close()
    assert [record.name for record in caplog.records] == ["bert_ds.data.processes"]
    assert "data.cache_dir: cannot copy shards" in caplog.text


def test_a_reader_process_never_imports_torch() -> None:
    code = (
        "import sys, bert_ds.data.worker; "
        "heavy = {'torch', 'deepspeed', 'pydantic', 'transformers'}; "
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
