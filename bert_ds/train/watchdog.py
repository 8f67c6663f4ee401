"""Ends a rank that makes no progress, and reports where it stands.

All other ranks wait for one that hangs (a dead network, a GPU that does not answer, a stopped
process), forever or until a collective times out. Here a thread in each rank checks whether its
training makes progress. If it does not for too long, the thread reports what the rank was doing and
the stack of every thread, and ends the process. Its launcher then ends the others.

Hard here: the thread that trains may be stuck in C code and hold locks, the screen may block too,
and other ranks may be stuck for the same reason. So the report has a time limit, the process ends
without cleaning up, and neither asks the thread that trains or another rank for anything.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import threading
import time
from collections.abc import Callable

from data_prep.contract.screen import show_last_words, within

EXIT_CODE = 1
_SECONDS_TO_WRITE = 5.0


class Watchdog:
    """A context manager around training, which calls `progress` whenever something begins."""

    def __init__(self, rank: str, seconds: float, end: Callable[[int], object] = os._exit) -> None:
        """Start no thread yet.

        Args:
            rank: this rank's name, for the message.
            seconds: time without progress after which the process ends; 0 for no limit.
            end: ends the process with an exit code.
        """
        self._rank = rank
        self._seconds = seconds
        self._end = end
        self._what = "starting"
        self._since = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def progress(self, what: str) -> None:
        """Note that something else begins.

        Args:
            what: what begins, such as "phase1, update 7: waiting for the other ranks".
        """
        self._since = time.monotonic()
        self._what = what

    def __enter__(self) -> Watchdog:
        self.progress(self._what)
        if self._seconds:
            self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_over.set()
        if self._seconds:
            self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(min(1.0, self._seconds / 10)):
            idle = time.monotonic() - self._since
            if idle > self._seconds:
                within(_SECONDS_TO_WRITE, functools.partial(self._report, idle))
                self._end(EXIT_CODE)
                return

    def _report(self, idle: float) -> None:
        """Report where this rank stands, with the stack of every thread."""
        show_last_words(
            f"bert-ds: error ({self._rank}): no progress for {idle:.0f} s, limit "
            f"{self._seconds:g} (watchdog_s); {self._what}. A rank that waits for the others "
            "hangs because of one that does not: look at what that rank logged, or at the host "
            "that is silent. Run the same command to resume from the last checkpoint. "
            "Where each thread of this rank stands:\n"
        )
        faulthandler.dump_traceback(all_threads=True)
