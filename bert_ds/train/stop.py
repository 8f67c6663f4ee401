"""Stopping on request: signals, the end of the run's time and a file end training at the next
update, with its state.

A request sets a flag on the rank that receives it; the loop asks for the flag of any rank with the
counts that it sums before every update, so that all ranks stop at the same one. The request is
acknowledged at once, since an update and a checkpoint may take minutes.

Ctrl-C a second time abandons the state and ends at once, but only once the acknowledgement can have
been read: people press it several times, and launchers pass it on once more. (Launchers also send
SIGTERM after the terminal's SIGINT: that is no second request.)

A file `stop` in the run folder is a request, too: signals do not reach the ranks on other hosts. So
is SIGHUP, which comes when the terminal is closed, except under nohup, where it is ignored.

The deepspeed command dies of a SIGTERM or SIGUSR1 that is sent to it alone, and leaves its ranks
running. So a launched rank whose launcher is gone takes that as the request.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from bert_ds.errors import StopRequested

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
SECONDS_TO_READ = 3.0
"""Further Ctrl-Cs within so many seconds of the first belong to it."""
_SECONDS_BETWEEN_LOOKS = 1.0
_DEEPSPEED_NODE_LAUNCHER = "deepspeed.launcher.launch"


class StopFlag:
    """Remembers that a stop was asked for; a context manager that holds the signal handlers."""

    def __init__(
        self,
        watched: Sequence[tuple[int, int]] = (),
        deadline: float | None = None,
        file: Path | None = None,
        *,
        acknowledge: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch for requests.

        Args:
            watched: (process, its parent) that must stay so, as `launcher_processes` gives them.
            deadline: the value of `clock` at which the run's time is up; None for no end.
            file: a file whose appearance asks for a stop; None for none.
            acknowledge: is passed a line for the user at each request, also in a signal handler.
            clock: returns seconds.
        """
        self._deadline = deadline
        self._file = file
        self._acknowledge = acknowledge
        self._clock = clock
        self._looked_at = 0.0
        self.signal_name: str | None = None
        self._watched = tuple(watched)
        self._interrupted_at: float | None = None
        self._former: dict[signal.Signals, Any] = {}

    @property
    def is_set(self) -> bool:
        """Whether this rank was asked to stop."""
        if self.signal_name is None:
            cause = self._cause()
            if cause is not None:
                self.signal_name = cause
                self._acknowledge(f"bert-ds: {cause}: saving the state after this update")
        return self.signal_name is not None

    def _cause(self) -> str | None:
        """Return what asks for a stop, signals apart; None where nothing does."""
        now = self._clock()
        if self._deadline is not None and now >= self._deadline:
            return "the run's time is up"
        if self._file is not None and now - self._looked_at >= _SECONDS_BETWEEN_LOOKS:
            self._looked_at = now
            if self._file.exists():
                return f"{self._file} asks for a stop"
        if any(parent_of(process) != parent for process, parent in self._watched):
            return "the launcher has ended"
        return None

    def __enter__(self) -> StopFlag:
        for number in _SIGNALS:
            former = signal.getsignal(number)
            if number == signal.SIGHUP and former == signal.SIG_IGN:
                continue  # nohup: the run outlives its terminal
            self._former[number] = former
            signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        # A stopped process only has to end. Another signal of the same request must not change its
        # exit code; Python gives handlers back to the system before it ends, but not SIG_IGN.
        is_stopped = kind is StopRequested
        for number, handler in self._former.items():
            signal.signal(number, signal.SIG_IGN if is_stopped else handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        is_first, self.signal_name = self.signal_name is None, self.signal_name or name
        if number == signal.SIGINT:
            self._handle_interrupt()
        elif is_first:
            self._acknowledge(f"bert-ds: {name}: saving the state after this update")

    def _handle_interrupt(self) -> None:
        """Acknowledge a Ctrl-C; raise KeyboardInterrupt at one that comes after it was read."""
        now = self._clock()
        if self._interrupted_at is None:
            self._interrupted_at = now
            self._acknowledge(
                "\nbert-ds: Ctrl-C: saving the state after this update; "
                f"press it once more, {SECONDS_TO_READ:g} seconds from now or later, to abandon it"
            )
        elif now - self._interrupted_at >= SECONDS_TO_READ:
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
