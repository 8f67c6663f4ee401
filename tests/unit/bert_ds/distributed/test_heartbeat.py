"""Heartbeats: the detector on a clock of its own, and ranks in one process over one store."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

import pytest
import torch.distributed as torch_dist

from bert_ds.distributed.heartbeat import (
    SEVERAL_HOSTS,
    Failure,
    FailureDetector,
    HeartbeatMonitor,
    Seen,
    Timing,
)
from bert_ds.distributed.world import World

QUICK = Timing(beat_s=0.05, tick_s=0.02, launcher_s=0.1, suspected_s=0.5, write_s=0.5)


class Ended:
    """Takes the place of os._exit."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.event = threading.Event()

    def __call__(self, code: int) -> None:
        self.code = code
        self.event.set()


def looks(
    detector: FailureDetector, seconds: int, seen: Callable[[int], Seen]
) -> tuple[int, Failure] | None:
    """Look once a second; return the second and the failure of the first look that has one."""
    for second in range(seconds):
        failure = detector.find_failure(float(second), seen(second))
        if failure is not None:
            return second, failure
    return None


def all_alive(second: int) -> Seen:
    beat = str(second).encode()
    return Seen(beats=(beat, beat), num_answers=second)


def rank_1_silent(second: int) -> Seen:
    return Seen(beats=(str(second).encode(), b"7"), num_answers=second)


def detector_of(rank: int, heartbeat_s: float = 30.0) -> FailureDetector:
    return FailureDetector(rank, ["a", "b"], heartbeat_s, SEVERAL_HOSTS)


def test_ranks_that_beat_are_never_blamed() -> None:
    assert looks(detector_of(0), 1000, all_alive) is None


def test_a_silent_rank_is_found_after_the_heartbeat_time() -> None:
    found = looks(detector_of(0), 1000, rank_1_silent)
    assert found is not None
    second, failure = found
    assert second == 31  # the first look in which more than 30 s have passed
    assert (failure.rank, failure.host, failure.exit_code, failure.is_reported) == (
        1,
        "b",
        1,
        False,
    )
    assert failure.as_text.startswith(
        "bert-ds: error (rank 1 on b): the rank has sent no heartbeat for 31 s (heartbeat_s): "
    )


def test_a_store_that_does_not_answer_is_the_fault_of_rank_0() -> None:
    found = looks(detector_of(1), 1000, lambda second: Seen(beats=(b"1",), num_answers=5))
    assert found is not None
    assert found[1].rank == 0
    assert "the rank has not answered b for 31 s (heartbeat_s)" in found[1].message
    assert looks(detector_of(0), 1000, lambda second: Seen(num_answers=5)) is None


def test_a_suspicion_shortens_the_patience() -> None:
    detector = detector_of(0, heartbeat_s=600)
    detector.suspect()
    found = looks(detector, 1000, rank_1_silent)
    assert found is not None
    assert found[0] == 11
    assert "for 11 s (a rank has lost its connections)" in found[1].message


def test_a_suspicion_never_lengthens_the_patience() -> None:
    detector = detector_of(0, heartbeat_s=3)
    detector.suspect()
    found = looks(detector, 1000, rank_1_silent)
    assert found is not None
    assert found[0] == 4


def test_without_heartbeats_silence_is_no_failure_but_a_lost_connection_is() -> None:
    detector = detector_of(1, heartbeat_s=0)
    detector.suspect()
    silent = Seen(beats=(b"7",))
    assert looks(detector, 1000, lambda second: silent) is None
    failure = detector.find_failure(1000.0, replace(silent, connection_error="reset by peer"))
    assert failure is not None
    assert failure.rank == 0
    assert "has ended (b lost its connection to it: reset by peer)" in failure.message


def test_a_process_that_was_suspended_blames_no_rank() -> None:
    """Its clock jumps: it counts one tick of the time in which it could not read."""
    detector = detector_of(0, heartbeat_s=5.0)
    assert detector.find_failure(0.0, rank_1_silent(0)) is None
    assert detector.find_failure(1000.0, rank_1_silent(1)) is None
    assert detector.find_failure(1003.0, rank_1_silent(2)) is None
    assert detector.find_failure(1006.0, rank_1_silent(3)) is not None


def test_a_reported_failure_counts_at_once_unless_it_is_the_own_one() -> None:
    failure = Failure(1, "b", "shard train-0.tar is damaged", 2, True)
    reported = Seen(beats=(b"1", b"1"), num_answers=1, reported=failure)
    assert detector_of(0).find_failure(0.0, reported) is failure
    assert detector_of(1).find_failure(0.0, reported) is None


@pytest.fixture
def make() -> Iterator[Callable[..., list[tuple[HeartbeatMonitor, Ended]]]]:
    """Make the ranks of a run; monitors that still run are closed at the end."""
    made: list[HeartbeatMonitor] = []

    def ranks(hosts: list[str]) -> list[tuple[HeartbeatMonitor, Ended]]:
        store = torch_dist.HashStore()
        found = []
        for rank in range(len(hosts)):
            local_world_size = hosts.count(hosts[rank])
            local_rank = hosts[:rank].count(hosts[rank])
            world = World(rank, len(hosts), local_rank, local_world_size, "torch")
            ended = Ended()
            monitor = HeartbeatMonitor(world, store, hosts, timing=QUICK, end_process=ended)
            found.append((monitor, ended))
        made.extend(monitor for monitor, _ in found)
        return found

    yield ranks
    for monitor in made:
        monitor.close()


def test_ranks_that_live_blame_no_rank(make) -> None:
    ranks = make(["a", "b"])
    for monitor, _ in ranks:
        monitor.start(heartbeat_s=0.5)
    time.sleep(1.5)
    assert [ended.code for _, ended in ranks] == [None, None]


@pytest.mark.parametrize("silent", [0, 1])
def test_a_rank_that_stops_beating_is_named(make, silent: int, capsys) -> None:
    ranks = make(["a", "b"])
    for monitor, _ in ranks:
        monitor.start(heartbeat_s=1.0)
    time.sleep(0.3)
    ranks[silent][0].close()
    assert ranks[1 - silent][1].event.wait(10)
    assert ranks[1 - silent][1].code == 1
    printed = capsys.readouterr().err
    assert f"bert-ds: error (rank {silent} on {'ab'[silent]}): the rank has sent no" in printed
    assert "it resumes from the last checkpoint" in printed


def test_a_failure_reaches_the_other_host_with_its_message_and_code(make, capsys) -> None:
    (first, first_ended), (second, second_ended) = make(["a", "b"])
    first.start(heartbeat_s=30)
    second.start(heartbeat_s=30)
    second.report_failure("shard train-0.tar is damaged", exit_code=2)
    assert first_ended.event.wait(10)
    assert first_ended.code == 2
    assert "bert-ds: error (rank 1 on b): shard train-0.tar is damaged" in capsys.readouterr().err
    time.sleep(0.3)
    assert second_ended.code is None  # it ends by itself


def test_on_its_own_host_a_failure_is_printed_once(make, capsys) -> None:
    (first, first_ended), (second, _) = make(["a", "a"])
    first.start(heartbeat_s=30)
    second.start(heartbeat_s=30)
    second.report_failure("printed already", exit_code=1)
    assert first_ended.event.wait(10)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("screen", ["full", "gone"])
def test_a_screen_that_takes_nothing_does_not_keep_a_rank_from_ending(
    make, screen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under `| less`, and under a `| tee` that a Ctrl-C has ended."""
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
    first.start(heartbeat_s=30)
    second.report_failure("the cause", exit_code=3)
    assert ended.event.wait(30)
    assert ended.code == 3
    if screen == "full":
        os.close(reading)
    with contextlib.suppress(BrokenPipeError):  # what was pending; Python 3.13 reports it if left
        stream.close()
    os.close(writing)


def test_the_first_failure_counts(make, capsys) -> None:
    (first, ended), (second, _), (third, _) = make(["a", "b", "c"])
    second.report_failure("the cause", exit_code=1)
    third.report_failure("what came of it", exit_code=1)
    first.start(heartbeat_s=30)
    assert ended.event.wait(10)
    printed = capsys.readouterr().err
    assert "(rank 1 on b): the cause" in printed
    assert "what came of it" not in printed


def test_after_a_broken_collective_a_short_silence_is_enough(make, capsys) -> None:
    (first, ended), (second, _) = make(["a", "b"])
    first.start(heartbeat_s=600)
    second.start(heartbeat_s=600)
    time.sleep(0.2)
    second.close()
    first.wait_for_diagnosis()
    assert ended.code == 1
    assert "rank 1 on b" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("[/x/gloo/transport/tcp/pair.cc:1] Connection closed by peer"), True),
        (torch_dist.DistBackendError("NCCL error"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("gloo"), False),
    ],
)
def test_broken_collectives_differ_from_other_faults(error: Exception, expected: bool) -> None:
    assert HeartbeatMonitor.is_broken_collective(error) is expected


def test_a_reported_failure_is_json_in_the_store() -> None:
    store = torch_dist.HashStore()
    world = World(1, 2, 0, 1, "torch")
    HeartbeatMonitor(world, store, ["a", "b"], timing=QUICK).report_failure("why", exit_code=2)
    assert json.loads(store.get("failure")) == asdict(Failure(1, "b", "why", 2, True))
