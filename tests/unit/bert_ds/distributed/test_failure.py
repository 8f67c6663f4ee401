"""What a rank reports, to whom, and how it leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bert_ds.distributed import failure
from bert_ds.distributed.failure import inform_other_ranks, leave, membership, report
from bert_ds.distributed.world import World
from bert_ds.errors import BertDsError, ConfigError, DataError, PeerError, StopRequested

ALONE = World(0, 1, 0, 1, "none")
SECOND = World(1, 2, 1, 2, "torch")


class Monitor:
    """Stands for a heartbeat monitor; keeps what is reported."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, int]] = []
        self.has_waited = False

    def report_failure(self, message: str, exit_code: int) -> None:
        self.reported.append((message, exit_code))

    def is_broken_collective(self, err: Exception) -> bool:
        return "gloo" in str(err)

    def wait_for_diagnosis(self) -> None:
        self.has_waited = True


@pytest.fixture
def monitor() -> Iterator[Monitor]:
    found: Any = Monitor()
    membership.monitor = found
    yield found
    membership.monitor = None


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds: list[float] = []
    monkeypatch.setattr(failure.time, "sleep", seconds.append)
    return seconds


@pytest.mark.parametrize(
    ("err", "world", "printed", "reported", "is_patient"),
    [
        (ConfigError("wrong"), ALONE, "bert-ds: error: wrong\n", [("wrong", 2)], False),
        # every rank of the host has it: the others wait until rank 0's report has ended them
        (ConfigError("wrong"), SECOND, "error (rank 1): wrong\n", [("wrong", 2)], True),
        (DataError("damaged"), SECOND, "error (rank 1): damaged\n", [("damaged", 1)], False),
        (PeerError(0, "damaged"), SECOND, "rank 0 has failed: damaged\n", [], True),
        (StopRequested("saved"), ALONE, "bert-ds: saved\n", [], False),
        (StopRequested("saved"), SECOND, "", [], False),
    ],
)
def test_an_error_is_printed_and_reported_once(
    monitor: Monitor,
    waits: list[float],
    capsys: pytest.CaptureFixture[str],
    err: BertDsError,
    world: World,
    printed: str,
    reported: list[tuple[str, int]],
    is_patient: bool,
) -> None:
    report(err, world)
    out, shown = capsys.readouterr()
    assert out == ""
    assert shown.endswith(printed)
    assert bool(shown) == bool(printed)
    assert monitor.reported == reported
    assert waits == [10.0] * is_patient


def test_a_rank_alone_on_its_host_opens_no_store_for_its_failure() -> None:
    inform_other_ranks("wrong", 2, ALONE)  # without MASTER_ADDR a store would raise KeyError


def test_only_a_broken_collective_waits_for_a_diagnosis(monitor: Monitor) -> None:
    failure.wait_for_diagnosis(ValueError("a fault"))
    assert not monitor.has_waited
    failure.wait_for_diagnosis(RuntimeError("gloo: connection closed"))
    assert monitor.has_waited


def test_a_process_in_a_group_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(failure.os, "_exit", codes.append)
    assert leave(3) == 3
    assert codes == []
    monkeypatch.setattr(membership, "is_in_group", True)
    leave(3)
    assert codes == [3]
