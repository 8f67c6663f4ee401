"""Stopping on request: training ends at the next update, with its state saved.

A request is a signal, the end of the run's time, a file `stop` in the run folder (signals do not
reach the ranks on other hosts), or the end of the launcher: the deepspeed command dies of a SIGTERM
or SIGUSR1 that is sent to it alone, and leaves its ranks running. SIGHUP, which comes when the
terminal is closed, is a request too, except under nohup, where it stays ignored.

Hard here: all ranks must stop at the same update, or those that train on hang in their next
all-reduce. A request sets a flag on the rank that receives it and nothing else; the ranks sum their
flags with the counts of each update (`bert_ds.train.counts`), and all of them read the same sum.
What must not change: a request ends the loop through that sum only, and a signal handler does not
raise at the first request. The request is acknowledged immediately, since an update and a
checkpoint may take minutes.

A second Ctrl-C abandons the state and ends the process, but only once the acknowledgement can have
been read: people press it several times, and launchers pass it on once more. (Launchers also send
SIGTERM after the terminal's SIGINT: that is no second request.)
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
"""Further Ctrl-Cs within this many seconds of the first one belong to it."""
_SECONDS_BETWEEN_LOOKS = 1.0
_DEEPSPEED_NODE_LAUNCHER = "deepspeed.launcher.launch"


class StopFlag:
    """Whether this rank was asked to stop; a context manager that installs the signal handlers."""

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
            watched: processes and their parents, as `launcher_processes` returns them; a process
                that gets another parent asks for a stop.
            deadline: the value of `clock` at which the run's time is up; None for no end.
            file: a file whose appearance asks for a stop; None for none.
            acknowledge: called with a line for the user at each request, also in a signal handler.
            clock: returns the time in seconds.
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
        """Return what asks for a stop, other than a signal; None if nothing does."""
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
        """Acknowledge the first Ctrl-C; raise KeyboardInterrupt at one that comes much later."""
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
    """Return this process and, under deepspeed, its node launcher, each with its present parent.

    torchrun is the parent of its ranks. deepspeed starts a node launcher, which starts the ranks;
    the user sends signals to the deepspeed command, so the node launcher's parent is watched too.
    """
    found = [(os.getpid(), os.getppid())]
    command = Path(f"/proc/{os.getppid()}/cmdline")
    if command.is_file() and _DEEPSPEED_NODE_LAUNCHER in command.read_text(errors="replace"):
        found.append((os.getppid(), parent_of(os.getppid())))
    return found


def parent_of(process: int) -> int:
    """Return the parent of a process; 0 if the process has ended or there is no /proc."""
    if process == os.getpid():
        return os.getppid()
    try:
        status = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return 0
    return int(status.rpartition(")")[2].split()[1])
