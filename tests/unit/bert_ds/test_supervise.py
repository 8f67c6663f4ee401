"""What supervise makes of a command before it starts it."""

from __future__ import annotations

import pytest

from bert_ds.commands.lost_hosts import value_of
from bert_ds.commands.supervise import _with_the_time_left
from bert_ds.durations import seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90m", 5400), ("3h50m", 13_800), ("3600", 3600), ("1d2h3m4s", 93_784), (" 12s ", 12)],
)
def test_durations_are_read_as_people_write_them(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5 hours", "-3", "1.5h", "h"])
def test_other_texts_are_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is no time; write 90m, 3h50m or 3600"):
        seconds_of(text)


def test_a_later_start_has_the_time_that_is_left() -> None:
    command = ["pretrain", "--time-limit", "1h", "--output-dir", "r"]
    assert _with_the_time_left(command, 600.4) == [
        "pretrain", "--time-limit=3000", "--output-dir", "r",
    ]  # fmt: skip
    assert _with_the_time_left(["pretrain", "--time-limit=10m"], 4000.0) == [
        "pretrain", "--time-limit=0",
    ]  # fmt: skip
    assert _with_the_time_left(["pretrain", "--output-dir", "r"], 5.0)[-1] == "r"
    assert value_of(["a", "--x=1=2", "--y"], "--x") == "1=2"
    assert value_of(["a", "--y"], "--y") is None
