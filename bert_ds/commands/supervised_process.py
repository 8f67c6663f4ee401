"""A command that supervise runs: output passes through, signals reach it, nothing of it remains.

What makes this hard: launchers print after the rank that failed, end with codes of their own, leave
ranks behind, and kill ranks half a minute after they get a SIGTERM. So the reason of a failure is
searched in the output, the code in torchrun's report, and the whole process group is ended.
`asked_to_stop` is set by a signal handler, `last_error` and its neighbours by the two threads that
read the output; they are read when those threads have ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TextIO

from data_prep.contract.screen import write_to_screen

SECONDS_TO_END = 30.0
SECONDS_TO_SAVE = 1800.0
"""For ranks that were asked to stop: an update and a checkpoint of a large model."""
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
_KILLED_PROCESS = re.compile(
    "noticed that process rank"  # Open MPI
    "|^= +(PID [0-9]+ RUNNING AT|EXIT CODE:)"  # MPICH
    "|Signal [0-9]+ \\(SIG[A-Z]+\\) received by PID"  # torchrun
)
_TORCHRUN_CODE = re.compile(r"^ *exitcode +: ([0-9]+) \(pid: [0-9]+\)")
"""torchrun always ends with 1; its report lists the first rank that failed last."""
_SECONDS_TO_READ = 5.0


@dataclass
class SupervisedProcess:
    """A process that runs one command after the other, and passes requests to stop on to it."""

    stop_file: Path | None
    """File that asks ranks to stop which no signal reaches (the deepspeed launcher passes none on
    to other hosts); None where signals do reach them."""
    last_error: str = ""
    """The last error that a rank has printed."""
    of_launcher: list[str] = field(default_factory=list)
    """Lines of an mpiexec or torchrun about a process that was killed; the other ranks, which it
    ends at once, have no time to report anything."""
    code_of_rank: int = 0
    """Exit code of the first rank that failed, where torchrun has reported it; else 0."""
    process: subprocess.Popen[str] | None = None
    """The command that runs, or the last one."""
    asked_to_stop: bool = False
    """Whether this process was asked to stop."""

    def run_once(self, command: list[str]) -> int:
        """Run a command and return its exit code; nothing of its process group runs any more."""
        self.last_error, self.of_launcher, self.code_of_rank = "", [], 0
        self.process = subprocess.Popen(
            command,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        readers = [
            threading.Thread(target=self._copy_output, args=streams, name="output", daemon=True)
            for streams in ((self.process.stdout, sys.stdout), (self.process.stderr, sys.stderr))
        ]
        for reader in readers:
            reader.start()
        code = self._wait()
        for reader in readers:
            reader.join(timeout=_SECONDS_TO_READ)
        if self.asked_to_stop:  # a launcher may be gone while its ranks save
            _wait_for_group(self.process.pid, SECONDS_TO_SAVE)
        _end_group(self.process.pid)
        return self.code_of_rank if code and self.code_of_rank else code

    def _wait(self) -> int:
        assert self.process is not None
        while True:
            try:
                return self.process.wait(timeout=_SECONDS_TO_READ)
            except subprocess.TimeoutExpired:
                if self.asked_to_stop and self.stop_file is not None:
                    ask_by_file(self.stop_file)  # a run that begins removes it

    def _copy_output(self, source: Iterable[str], screen: TextIO) -> None:
        for line in source:
            screen.write(line)
            screen.flush()
            _, mark, error = line.partition("bert-ds: error")
            if mark:
                self.last_error = error.strip(": \n")
            elif _KILLED_PROCESS.search(line):
                self.of_launcher.append(" ".join(line.strip("= \n").split()))
            elif found := _TORCHRUN_CODE.match(line):
                self.code_of_rank = int(found[1])

    @property
    def reason(self) -> str:
        """The reason of the failure, if a rank or the launcher has printed it; else empty."""
        return self.last_error or "; ".join(self.of_launcher)

    def catch_stop_signals(self) -> None:
        """Ask the command to stop when this process gets a signal."""
        for number in _STOP_SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, self._ask_to_stop)

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: send SIGUSR1 or make the stop file.

        Ranks save and end at SIGUSR1. Launchers that handle SIGTERM would kill their ranks half a
        minute later, whether they have saved or not.
        """
        was_asked, self.asked_to_stop = self.asked_to_stop, True
        if not was_asked:
            write_to_screen(
                "bert-ds supervise: asked to stop; waiting for the run to save its state"
            )
        if self.stop_file is not None and not was_asked:
            ask_by_file(self.stop_file)
        elif self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGUSR1)


def ask_by_file(path: Path) -> None:
    """Ask the ranks of a run to save and end, on whatever host they are."""
    with contextlib.suppress(OSError):  # no folder: no run
        path.touch()


def _runs(group: int) -> bool:
    """Return whether a process of the group runs; one that waits to be reaped does not."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # it has ended meanwhile
            if int(fields[2]) == group and fields[0] not in "ZX":
                return True
    return False


def _wait_for_group(group: int, seconds: float) -> bool:
    """Wait until nothing of the group runs; return whether that was so in time."""
    deadline = time.monotonic() + seconds
    while _runs(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def _end_group(group: int) -> None:
    """End what the command has left running."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not _runs(group):
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)
        _wait_for_group(group, SECONDS_TO_END)
