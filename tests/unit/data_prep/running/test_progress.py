"""Progress lines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat

import pytest

from data_prep.running.progress import Progress


def test_lines_come_every_five_seconds_and_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    times: Iterator[float] = iter([0.0, 1.0, 5.5, 5.6, 5.7, 6.0, 6.1])
    with Progress("map", 4_000_000, "B", clock=lambda: next(times)) as progress:
        for _ in range(3):
            progress.advance(1_000_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["map: 2 of 4 MB, 6 s, about 6 s left", "map: 4 of 4 MB, 6 s"]


def test_the_time_left_is_that_of_this_run(capsys: pytest.CaptureFixture[str]) -> None:
    times: Iterator[float] = chain([0.0], repeat(10.0))
    with Progress("map", 1_000_000_000, "B", clock=lambda: next(times)) as progress:
        progress.start_at(500_000_000)  # an earlier run did this: it says nothing of our speed
        progress.advance(1_000_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "map: 501 of 1000 MB, 10 s, about 1 h 23 min left"


def test_nothing_is_said_where_it_is_not_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("map", 2, "files", is_shown=False) as progress:
        progress.advance(2)
    assert capsys.readouterr().err == ""


def test_an_interrupted_stage_does_not_say_it_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), Progress("map", 2, "files"):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == ""
