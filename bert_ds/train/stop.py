"""Stopping on request: SIGTERM, SIGINT and SIGUSR1, and the end of the run's time, end it at the
next update, with its state.

A signal sets a flag on the rank that got it; the loop asks for the flag of any rank with the counts
that it sums before every update, so that all ranks stop at the same one. A second Ctrl-C ends at
once. (Launchers send SIGTERM after the terminal's SIGINT: that is no second Ctrl-C.)

So does a file `stop` in the run folder: signals do not reach the ranks on other hosts.

The deepspeed command dies of a SIGTERM or SIGUSR1 that is sent to it alone, and leaves its ranks
running. So a launched rank whose launcher is gone takes that as the request.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_SECONDS_BETWEEN_LOOKS = 1.0
_DEEPSPEED_NODE_LAUNCHER = "deepspeed.launcher.launch"


class StopFlag:
    """Remembers that a stop was asked for; a context manager that holds the signal handlers."""

    def __init__(
        self,
        watched: Sequence[tuple[int, int]] = (),
        deadline: float | None = None,
        file: Path | None = None,
    ) -> None:
        """Args: (process, its parent) that must stay so, as `launcher_processes` gives them; the
        `time.monotonic()` at which time is up; a file whose appearance asks for a stop.
        """
        self._deadline = deadline
        self._file = file
        self._looked_at = 0.0
        self.signal_name: str | None = None
        self._watched = tuple(watched)
        self._num_interrupts = 0
        self._former: dict[signal.Signals, Any] = {}

    @property
    def is_set(self) -> bool:
        """Whether this rank was asked to stop."""
        if self.signal_name is None:
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self.signal_name = "end of its time"
                return True
            if self._is_asked_by_file():
                self.signal_name = f"{self._file}"
                return True
            is_orphan = any(parent_of(process) != parent for process, parent in self._watched)
            self.signal_name = "loss of its launcher" if is_orphan else None
        return self.signal_name is not None

    def _is_asked_by_file(self) -> bool:
        now = time.monotonic()
        if self._file is None or now - self._looked_at < _SECONDS_BETWEEN_LOOKS:
            return False
        self._looked_at = now
        return self._file.exists()

    def __enter__(self) -> StopFlag:
        self._former = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.signal_name = signal.Signals(number).name
        if number == signal.SIGINT:
            self._num_interrupts += 1
            if self._num_interrupts > 1:
                raise KeyboardInterrupt


def launcher_processes() -> list[tuple[int, int]]:
    """This process and, under deepspeed, its node launcher, each with its present parent.

    torchrun is the parent of its ranks. deepspeed starts a node launcher, which starts the ranks:
    of the two the user knows the first, so the node launcher's parent is watched too.
    """
    found = [(os.getpid(), os.getppid())]
    command = Path(f"/proc/{os.getppid()}/cmdline")
    if command.is_file() and _DEEPSPEED_NODE_LAUNCHER in command.read_text(errors="replace"):
        found.append((os.getppid(), parent_of(os.getppid())))
    return found


def parent_of(process: int) -> int:
    """The parent of a process, or 0 where it is gone or there is no /proc to tell."""
    if process == os.getpid():
        return os.getppid()
    try:
        status = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return 0
    return int(status.rpartition(")")[2].split()[1])
