"""A rank without progress ends and says where it stood."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time

import pytest

from bert_ds.train.watchdog import Watchdog

HANGING = """
import time
from bert_ds.train.watchdog import Watchdog

def hang_for_ever():
    time.sleep(600)

with Watchdog("rank 3", 0.5) as watchdog:
    watchdog.progress("phase1, update 7: computing")
    hang_for_ever()
"""


def test_a_hanging_process_ends_with_its_stack() -> None:
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert time.monotonic() - started < 40
    assert "bert-ds: error (rank 3): no progress for" in done.stderr
    assert "limit 0.5 (watchdog_s); phase1, update 7: computing" in done.stderr
    assert "in hang_for_ever" in done.stderr


@pytest.mark.parametrize("screen", ["full", "gone"])
def test_a_hanging_process_ends_also_where_its_message_cannot_be_written(screen: str) -> None:
    reading, writing = os.pipe()
    if screen == "full":
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(1 << 12))
        os.set_blocking(writing, True)
    else:
        os.close(reading)
    done = subprocess.run([sys.executable, "-c", HANGING], stderr=writing, timeout=60, check=False)
    assert done.returncode == 1
    os.close(writing)


def test_progress_keeps_it_quiet_and_the_end_ends_it() -> None:
    ended: list[int] = []
    with Watchdog("rank 0", 1.0, ended.append) as watchdog:
        for number in range(15):
            watchdog.progress(f"step {number}")
            time.sleep(0.1)
    assert not ended
    assert "watchdog" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_zero_never_ends_and_time_does_not_run_before_it_is_entered(seconds: float) -> None:
    ended: list[int] = []
    watchdog = Watchdog("rank 0", seconds, ended.append)
    time.sleep(0.05)
    with watchdog:
        time.sleep(0.05)
    assert not ended
