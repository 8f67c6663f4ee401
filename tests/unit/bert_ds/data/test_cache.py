"""Copies of shards on a local disk: whole or not there, shared, and never in the way."""

from __future__ import annotations

import errno
import fcntl
import logging
import multiprocessing as mp
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bert_ds.data import cache as cache_module
from bert_ds.data.cache import ShardCache
from bert_ds.data.reader import BlockReader, open_dataset
from bert_ds.errors import DataError
from data_prep.contract.manifest import Manifest
from tests.support.datasets import make_dataset


@pytest.fixture
def data(tmp_path: Path) -> Path:
    make_dataset(tmp_path / "data")
    return tmp_path / "data"


def read_all(folder: Path, cache_dir: Path) -> list[list[int]]:
    """Tokens of every training block, read through a cache."""
    manifest = open_dataset(folder)
    reader = BlockReader(folder, manifest, "train", ShardCache(cache_dir, folder, manifest))
    found = [reader.read(block).tokens.tolist() for block in range(len(reader.block_counts))]
    reader.close()
    return found


def copies(cache_dir: Path, manifest: Manifest) -> list[str]:
    return sorted(os.listdir(cache_dir / manifest.fingerprint))


def test_a_shard_is_copied_when_a_block_of_it_is_read_and_read_from_there(
    data: Path, tmp_path: Path
) -> None:
    manifest = open_dataset(data)
    cache = ShardCache(tmp_path / "cache", data, manifest)
    reader = BlockReader(data, manifest, "train", cache)
    expected = BlockReader(data, manifest, "train").read(0).tokens
    assert copies(tmp_path / "cache", manifest) == []
    np.testing.assert_array_equal(reader.read(0).tokens, expected)
    first, *others = manifest.shards("train")
    assert copies(tmp_path / "cache", manifest) == [first.file]
    reader.close()
    shutil.move(data / first.file, tmp_path / "gone")
    np.testing.assert_array_equal(reader.read(0).tokens, expected)
    reader.close()
    assert others


def test_a_copy_of_another_size_is_made_again(data: Path, tmp_path: Path) -> None:
    manifest = open_dataset(data)
    expected = read_all(data, tmp_path / "cache")
    copy = tmp_path / "cache" / manifest.fingerprint / manifest.shards("train")[0].file
    copy.write_bytes(copy.read_bytes()[:100])
    assert read_all(data, tmp_path / "cache") == expected
    assert copy.stat().st_size == manifest.shards("train")[0].bytes


def test_a_shard_that_changed_size_is_not_kept(data: Path, tmp_path: Path) -> None:
    manifest = open_dataset(data)
    shard = manifest.shards("train")[0]
    cache = ShardCache(tmp_path / "cache", data, manifest)
    (data / shard.file).write_bytes(b"short")
    with pytest.raises(DataError, match=rf"{shard.file} has 5 bytes, its manifest says"):
        cache.path_of(shard)
    assert copies(tmp_path / "cache", manifest) == []


def test_a_changed_byte_in_a_copy_names_the_copy(data: Path, tmp_path: Path) -> None:
    manifest = open_dataset(data)
    read_all(data, tmp_path / "cache")
    shard = manifest.shards("train")[0]
    copy = tmp_path / "cache" / manifest.fingerprint / shard.file
    content = bytearray(copy.read_bytes())
    content[shard.blocks[0].offset + shard.blocks[0].size // 2] ^= 1
    copy.write_bytes(content)
    with pytest.raises(DataError, match=str(copy)):
        read_all(data, tmp_path / "cache")


def test_a_full_disk_is_logged_once_and_the_shards_are_read_where_they_are(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # A real full disk needs root and a mount: only the call that would fail is replaced.
    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    expected = read_all(data, tmp_path / "first")
    monkeypatch.setattr(cache_module.shutil, "copyfileobj", no_space)
    with caplog.at_level(logging.WARNING):
        assert read_all(data, tmp_path / "cache") == expected
    assert len(caplog.records) == 1
    assert "No space left on device" in caplog.text
    assert f"read from {data}" in caplog.text
    assert copies(tmp_path / "cache", open_dataset(data)) == []
    # what had been copied before the disk was full is used
    monkeypatch.undo()
    read_all(data, tmp_path / "cache")
    monkeypatch.setattr(cache_module.shutil, "copyfileobj", no_space)
    caplog.clear()
    assert read_all(data, tmp_path / "cache") == expected
    assert not caplog.records


def test_a_cache_that_cannot_be_made_is_logged_and_no_obstacle(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    expected = read_all(data, tmp_path / "cache")
    assert read_all(data, tmp_path / "file" / "cache") == expected
    assert caplog.text.count("data.cache_dir") == 1


def read_in_a_process(folder: Path, cache_dir: Path, results: mp.Queue[object]) -> None:
    results.put(read_all(folder, cache_dir))


@pytest.mark.timeout(120)
def test_processes_that_share_a_cache_read_the_same_and_leave_whole_copies(
    data: Path, tmp_path: Path
) -> None:
    expected, manifest = read_all(data, tmp_path / "first"), open_dataset(data)
    context = mp.get_context("spawn")
    results = context.Queue()
    arguments = (data, tmp_path / "cache", results)
    processes = [context.Process(target=read_in_a_process, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == [expected] * 4
    for process in processes:
        process.join(10)
        assert process.exitcode == 0
    results.close()
    results.join_thread()
    assert copies(tmp_path / "cache", manifest) == [s.file for s in manifest.shards("train")]


COPIES_UNTIL_KILLED = """
import sys, time
from pathlib import Path
from bert_ds.data import cache
from bert_ds.data.reader import open_dataset

def stuck(source, target, length):
    target.write(source.read(100))
    target.flush()
    print("copying", flush=True)
    time.sleep(600)

cache.shutil.copyfileobj = stuck
folder, manifest = Path(sys.argv[1]), open_dataset(Path(sys.argv[1]))
cache.ShardCache(Path(sys.argv[2]), folder, manifest).path_of(manifest.shards("train")[0])
"""


@pytest.mark.timeout(120)
def test_a_partial_copy_of_a_killed_process_is_removed_and_a_living_ones_is_not(
    data: Path, tmp_path: Path
) -> None:
    manifest = open_dataset(data)
    command = [sys.executable, "-c", COPIES_UNTIL_KILLED, str(data), str(tmp_path / "cache")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"copying\n"
        partial = [f".{manifest.shards('train')[0].file}.partial"]
        assert copies(tmp_path / "cache", manifest) == partial
        ShardCache(tmp_path / "cache", data, manifest)
        assert copies(tmp_path / "cache", manifest) == partial  # its writer lives
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    ShardCache(tmp_path / "cache", data, manifest)
    assert copies(tmp_path / "cache", manifest) == []


@pytest.mark.timeout(120)
def test_who_comes_second_waits_for_the_copy_and_makes_none(data: Path, tmp_path: Path) -> None:
    manifest = open_dataset(data)
    shard = manifest.shards("train")[0]
    cache = ShardCache(tmp_path / "cache", data, manifest)
    folder = tmp_path / "cache" / manifest.fingerprint
    partial = folder / f".{shard.file}.partial"
    context = mp.get_context("spawn")
    results = context.Queue()
    with partial.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waiting = context.Process(
            target=read_in_a_process, args=(data, tmp_path / "cache", results)
        )
        waiting.start()
        time.sleep(1.0)
        assert copies(tmp_path / "cache", manifest) == [partial.name]
        file.write((data / shard.file).read_bytes())
        file.flush()
        inode = os.fstat(file.fileno()).st_ino
        partial.replace(folder / shard.file)
    assert results.get(timeout=60) == read_all(data, tmp_path / "first")
    waiting.join(10)
    results.close()
    results.join_thread()
    assert cache.path_of(shard).stat().st_ino == inode
