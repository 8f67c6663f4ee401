"""Ranks that hear of each other: two of them in one process, over a store in memory."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch.distributed as torch_dist

from bert_ds.distributed import heartbeat as module
from bert_ds.distributed.heartbeat import Peers
from bert_ds.distributed.world import World


class Ended:
    """Takes the place of os._exit."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.event = threading.Event()

    def __call__(self, code: int) -> None:
        self.code = code
        self.event.set()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BEAT_S", 0.05)
    monkeypatch.setattr(module, "_TICK_S", 0.02)
    monkeypatch.setattr(module, "_FOR_THE_LAUNCHER_S", {False: 0.1, True: 0.1})
    monkeypatch.setattr(module, "_IN_DOUBT_S", {False: 0.5, True: 0.5})


@pytest.fixture
def make() -> Iterator[Callable[..., list[tuple[Peers, Ended]]]]:
    """Makes the ranks of a run; those that still watch are closed."""
    made: list[Peers] = []

    def ranks(hosts: list[str]) -> list[tuple[Peers, Ended]]:
        store = torch_dist.HashStore()
        found = []
        for rank in range(len(hosts)):
            local_world_size = hosts.count(hosts[rank])
            local_rank = hosts[:rank].count(hosts[rank])
            world = World(rank, len(hosts), local_rank, local_world_size, "torch")
            ended = Ended()
            found.append((Peers(world, store, hosts, ended), ended))
        made.extend(peers for peers, _ in found)
        return found

    yield ranks
    for peers in made:
        peers.close()


def test_ranks_that_live_blame_nobody(make) -> None:
    ranks = make(["a", "b"])
    for peers, _ in ranks:
        peers.watch(heartbeat_s=0.5)
    time.sleep(1.5)
    assert [ended.code for _, ended in ranks] == [None, None]


@pytest.mark.parametrize("silent", [0, 1])
def test_a_rank_that_says_nothing_is_named(make, silent: int, capsys) -> None:
    ranks = make(["a", "b"])
    for peers, _ in ranks:
        peers.watch(heartbeat_s=1.0)
    time.sleep(0.3)
    ranks[silent][0].close()  # no further sign of life
    assert ranks[1 - silent][1].event.wait(10)
    assert ranks[1 - silent][1].code == 1
    told = capsys.readouterr().err
    host = "ab"[silent]
    assert (
        f"bert-ds: error (rank {silent} on {host}): the rank has not been heard of for 1 s" in told
    )
    assert "goes on from the last checkpoint" in told


def test_a_failure_reaches_the_other_host_with_its_words_and_code(make, capsys) -> None:
    (first, first_ended), (second, second_ended) = make(["a", "b"])
    first.watch(heartbeat_s=30)
    second.watch(heartbeat_s=30)
    second.tell("shard train-0.tar is damaged", exit_code=2)
    assert first_ended.event.wait(10)
    assert first_ended.code == 2
    assert "bert-ds: error (rank 1 on b): shard train-0.tar is damaged" in capsys.readouterr().err
    time.sleep(0.3)
    assert second_ended.code is None  # it ends itself


def test_on_its_own_host_a_failure_is_not_told_again(make, capsys) -> None:
    (first, first_ended), (second, _) = make(["a", "a"])
    first.watch(heartbeat_s=30)
    second.watch(heartbeat_s=30)
    second.tell("it has said so", exit_code=1)
    assert first_ended.event.wait(10)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("screen", ["full", "gone"])
def test_a_screen_that_takes_nothing_does_not_keep_a_rank_from_ending(
    make, screen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under `| less`, and under a `| tee` that a Ctrl-C has ended."""
    monkeypatch.setattr(module, "_TO_WRITE_S", 0.5)
    reading, writing = os.pipe()
    if screen == "full":
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(4096))
        os.set_blocking(writing, True)
    else:
        os.close(reading)
    stream = os.fdopen(writing, "w", closefd=False)
    monkeypatch.setattr(sys, "stderr", stream)
    (first, ended), (second, _) = make(["a", "b"])
    first.watch(heartbeat_s=30)
    second.tell("the cause", exit_code=3)
    assert ended.event.wait(30)
    assert ended.code == 3
    if screen == "full":
        os.close(reading)
    with contextlib.suppress(BrokenPipeError):  # what was pending; Python 3.13 reports it if left
        stream.close()
    os.close(writing)


def test_the_first_failure_counts(make, capsys) -> None:
    (first, ended), (second, _), (third, _) = make(["a", "b", "c"])
    second.tell("the cause", exit_code=1)
    third.tell("what came of it", exit_code=1)
    first.watch(heartbeat_s=30)
    assert ended.event.wait(10)
    told = capsys.readouterr().err
    assert "(rank 1 on b): the cause" in told
    assert "what came of it" not in told


def test_in_doubt_a_short_silence_is_enough(make, capsys) -> None:
    (first, ended), (second, _) = make(["a", "b"])
    first.watch(heartbeat_s=600)
    second.watch(heartbeat_s=600)
    time.sleep(0.2)
    second.close()
    first.wait_for_a_verdict()
    assert ended.code == 1
    assert "rank 1 on b" in capsys.readouterr().err


def test_without_heartbeats_silence_is_no_failure(make) -> None:
    (first, ended), (second, _) = make(["a", "b"])
    first.watch(heartbeat_s=0)
    second.watch(heartbeat_s=0)
    second.close()
    time.sleep(0.8)
    assert ended.code is None


def test_a_process_that_was_suspended_blames_nobody(make, monkeypatch) -> None:
    """Its clock jumps: the others had no chance to be heard."""
    (first, ended), (second, _) = make(["a", "b"])
    first.watch(heartbeat_s=5.0)
    second.watch(heartbeat_s=5.0)
    time.sleep(0.2)
    real = time.monotonic
    monkeypatch.setattr(module.time, "monotonic", lambda: real() + 1000)
    time.sleep(0.5)
    assert ended.code is None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("[/x/gloo/transport/tcp/pair.cc:1] Connection closed by peer"), True),
        (torch_dist.DistBackendError("NCCL error"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("gloo"), False),
    ],
)
def test_broken_collectives_are_told_from_faults(error: Exception, expected: bool) -> None:
    assert Peers.is_broken_collective(error) is expected


def test_what_a_rank_tells_is_json_in_the_store(make) -> None:
    store_of = make(["a", "b"])[1][0]
    store_of.tell("why", exit_code=2)
    found = json.loads(store_of._store.get("failure"))
    assert found == {
        "rank": 1, "host": "b", "message": "why", "exit_code": 2, "is_told": True
    }  # fmt: skip
