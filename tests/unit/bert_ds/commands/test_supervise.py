"""What supervise makes of a command before it starts it, and of how it ended."""

from __future__ import annotations

import pytest

from bert_ds.commands.lost_hosts import value_of
from bert_ds.commands.supervise import Outcome, _with_the_time_left, classify


@pytest.mark.parametrize("has_trained", [False, True])
@pytest.mark.parametrize("asked_to_stop", [False, True])
@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        (0, "complete", Outcome.COMPLETE),
        (0, "interrupted", Outcome.STOPPED),  # a launcher that hides how its ranks ended
        (1, "interrupted", Outcome.STOPPED),
        (75, "interrupted", Outcome.STOPPED),
        (75, "", Outcome.STOPPED),
        (75, "failed", Outcome.STOPPED),
    ],
)
def test_what_a_run_has_recorded_decides(
    code: int, status: str, asked_to_stop: bool, has_trained: bool, expected: Outcome
) -> None:
    found = classify(code, status, asked_to_stop=asked_to_stop, has_trained=has_trained)
    assert found is expected


@pytest.mark.parametrize(
    ("code", "status", "asked_to_stop", "has_trained", "expected"),
    [
        (1, "running", True, True, Outcome.STOPPED_UNSAVED),
        (0, "running", True, True, Outcome.STOPPED_UNSAVED),
        (2, "", True, False, Outcome.STOPPED_UNSAVED),
        (2, "", False, False, Outcome.WRONG_SETTINGS),
        (2, "failed", False, True, Outcome.FAILED),  # its data may be away for a while
        (1, "", False, False, Outcome.FAILED),
        (1, "failed", False, True, Outcome.FAILED),
        (-9, "running", False, True, Outcome.FAILED),
        (0, "running", False, True, Outcome.FAILED),
        (1, "complete", False, True, Outcome.FAILED),
    ],
)
def test_otherwise_the_code_decides(
    code: int, status: str, asked_to_stop: bool, has_trained: bool, expected: Outcome
) -> None:
    found = classify(code, status, asked_to_stop=asked_to_stop, has_trained=has_trained)
    assert found is expected


def test_a_later_start_has_the_time_that_is_left() -> None:
    command = ["pretrain", "--time-limit", "1h", "--output-dir", "r"]
    assert _with_the_time_left(command, 600.4) == [
        "pretrain", "--time-limit", "3000", "--output-dir", "r",
    ]  # fmt: skip
    assert _with_the_time_left(["pretrain", "--time-limit=10m"], 4000.0) == [
        "pretrain", "--time-limit", "0",
    ]  # fmt: skip
    assert _with_the_time_left(["pretrain", "--output-dir", "r"], 5.0)[-1] == "r"
    assert value_of(["a", "--x=1=2", "--y"], "--x") == "1=2"
    assert value_of(["a", "--y"], "--y") is None
