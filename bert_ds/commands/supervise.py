"""`bert-ds supervise`: start a training command again, from its last checkpoint, when it fails.

It stands above the launcher, so it serves all of them: a launcher ends all ranks when one fails,
and the next start goes on from the checkpoint. What cannot be mended by starting again (wrong
settings, a stop that was asked for) is not started again.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import re
import shlex
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

from bert_ds.commands.lost_hosts import on_hosts_left, value_of
from bert_ds.durations import seconds_of
from bert_ds.errors import BertDsError, CheckpointError, ConfigError, StopRequested
from bert_ds.files import read_json_object
from data_prep.contract.screen import write_to_screen

_ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
_OF_A_KILLED_PROCESS = re.compile(
    "noticed that process rank"  # Open MPI
    "|^= +(PID [0-9]+ RUNNING AT|EXIT CODE:)"  # MPICH
    "|Signal [0-9]+ \\(SIG[A-Z]+\\) received by PID"  # torchrun
)
_TORCHRUNS_CODE = re.compile(r"^ *exitcode +: ([0-9]+) \(pid: [0-9]+\)")
"""torchrun ends with 1 whatever its ranks end with; it tells of the first that failed last."""
_SECONDS_TO_END = 30.0
_SECONDS_TO_HEAR = 5.0
_SECONDS_TO_SAVE = 1800.0
"""For ranks that were asked to stop: an update and a checkpoint of a large model."""


class SupervisedError(BertDsError):
    """The command has failed for good."""


@dataclass
class _Supervisor:
    """Runs one command after the other, and asks the one that runs to stop.

    Attributes:
        stop_file: asks ranks to stop that no signal reaches (the deepspeed launcher hands none on
            to other hosts); None where signals do reach them.
        last_error: the last error that a rank has written. What the command prints passes through
            here: launchers go on talking after the rank that failed, whose words shall be the last.
        of_launcher: what an mpiexec or torchrun has said of a process that was killed; the other
            ranks, which it ends at once, have no time to.
        code_of_rank: of the first rank that failed, where torchrun has told it; else 0.
        asked_to_stop: whether somebody has asked this process to stop.
    """

    stop_file: Path | None
    last_error: str = ""
    of_launcher: list[str] = field(default_factory=list)
    code_of_rank: int = 0
    process: subprocess.Popen[str] | None = None
    asked_to_stop: bool = False

    def run_once(self, command: list[str]) -> int:
        """The command's exit code; nothing of its process group runs any more."""
        self.last_error, self.of_launcher, self.code_of_rank = "", [], 0
        self.process = subprocess.Popen(
            command,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        listeners = [
            threading.Thread(target=self._listen, args=streams, name="listener", daemon=True)
            for streams in ((self.process.stdout, sys.stdout), (self.process.stderr, sys.stderr))
        ]
        for listener in listeners:
            listener.start()
        code = self._wait()
        for listener in listeners:
            listener.join(timeout=_SECONDS_TO_HEAR)
        if self.asked_to_stop:  # a launcher may be gone while its ranks save
            _wait_for_group(self.process.pid, _SECONDS_TO_SAVE)
        _end_group(self.process.pid)
        return self.code_of_rank if code and self.code_of_rank else code

    def _wait(self) -> int:
        assert self.process is not None
        while True:
            try:
                return self.process.wait(timeout=_SECONDS_TO_HEAR)
            except subprocess.TimeoutExpired:
                if self.asked_to_stop and self.stop_file is not None:
                    ask_by_file(self.stop_file)  # a run that begins removes it

    def _listen(self, source: Iterable[str], screen: TextIO) -> None:
        for line in source:
            screen.write(line)
            screen.flush()
            _, mark, error = line.partition("bert-ds: error")
            if mark:
                self.last_error = error.strip(": \n")
            elif _OF_A_KILLED_PROCESS.search(line):
                self.of_launcher.append(" ".join(line.strip("= \n").split()))
            elif told := _TORCHRUNS_CODE.match(line):
                self.code_of_rank = int(told[1])

    @property
    def reason(self) -> str:
        """Why the command has failed, as far as somebody has said so; else empty."""
        return self.last_error or "; ".join(self.of_launcher)

    def ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        """A signal handler. Ranks take SIGUSR1 as the request; launchers that know SIGTERM would
        kill their ranks half a minute later, whether they have saved or not."""
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


def run(arguments: argparse.Namespace) -> None:
    """Run the command until it is done, or has failed too often without a new checkpoint.

    Raises:
        ConfigError: it is no command that can be supervised, or it asks for what is wrong.
        StopRequested: a stop was asked for.
        SupervisedError: it failed more often than is allowed.
    """
    words = arguments.program
    command = words[1:] if words[:1] == ["--"] else words
    output_dir = Path(value_of(command, "--output-dir") or "")
    _check(arguments, command)
    if "--dry-run" in command:
        _do_once(command)
        return
    on_hosts = value_of(command, "--hostfile") is not None
    supervisor = _Supervisor(output_dir / "stop" if on_hosts else None)
    failures, begun, has_trained = 0, time.monotonic(), False
    present = on_hosts_left(command, output_dir) if arguments.drop_lost_hosts else command
    for number in _ASKING:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, supervisor.ask_to_stop)
    while True:
        before, summary = _progress_of(output_dir), _changed_at(output_dir / "summary.json")
        started = time.monotonic()
        code = supervisor.run_once(_with_the_time_left(present, started - begun))
        # ranks on other hosts may save, or end, when the launcher here is gone
        _wait_for_run_folder(
            output_dir, _SECONDS_TO_SAVE if supervisor.asked_to_stop else _SECONDS_TO_END
        )
        is_told = _changed_at(output_dir / "summary.json") != summary
        status = _status_of(output_dir)
        if code == 0 and status == "complete":
            return
        if (is_told and status == "interrupted") or code == StopRequested.exit_code:
            raise StopRequested("the run has stopped on request; the same command goes on with it")
        if supervisor.asked_to_stop:
            raise StopRequested(
                "asked to stop, and the run has not said that it saved its state: the same command "
                "goes on from its last checkpoint"
            )
        has_trained = has_trained or is_told
        if code == ConfigError.exit_code and not has_trained:  # else data may be away for a while
            raise ConfigError(
                "the command cannot run as it is (see above); it is not started again"
            )
        failures = 1 if _progress_of(output_dir) != before else failures + 1
        told = f"the command ended with code {code} after {time.monotonic() - started:.0f} s"
        if supervisor.reason:
            told = f"{supervisor.reason} ({told})"
        if failures > arguments.max_restarts:
            raise SupervisedError(
                f"{told}; failure {failures} since the last new checkpoint in {output_dir}, "
                f"--max-restarts {arguments.max_restarts}"
            )
        sys.stderr.write(
            f"bert-ds supervise: {told}; starting it again (restart {failures} of "
            f"{arguments.max_restarts} since the last new checkpoint)\n"
        )
        sys.stderr.flush()
        time.sleep(arguments.pause)
        if arguments.drop_lost_hosts:
            present = on_hosts_left(command, output_dir)
        if supervisor.asked_to_stop:
            raise StopRequested("asked to stop between two starts")


def _check(arguments: argparse.Namespace, command: list[str]) -> None:
    if arguments.max_restarts < 0 or arguments.pause < 0:
        raise ConfigError("--max-restarts and --pause must not be negative")
    if value_of(command, "--output-dir") is None:
        raise ConfigError(
            "supervise needs a command that trains, with its --output-dir: bert-ds supervise "
            f"--max-restarts 3 -- deepspeed ... --module bert_ds pretrain ...; it is "
            f"'{shlex.join(command)}'"
        )
    if arguments.drop_lost_hosts and value_of(command, "--hostfile") is None:
        raise ConfigError("--drop-lost-hosts needs a command with a --hostfile")
    hostfile = value_of(command, "--hostfile")
    if hostfile is not None and not Path(hostfile).is_file():
        raise ConfigError(
            f"there is no hostfile {hostfile}; deepspeed would take no notice and train on this "
            "machine alone"
        )
    resume = value_of(command, "--resume")
    if resume not in (None, "auto"):
        raise ConfigError(
            f"supervise needs --resume auto, the default: with --resume {resume} a second start "
            "would not go on from where the first has come to; begin without supervise"
        )


def _do_once(command: list[str]) -> None:
    """Run a command that trains nothing.

    Raises:
        ConfigError: it has failed, and said why.
    """
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        raise ConfigError(f"the dry run ended with code {code} (see above)")


def _with_the_time_left(command: list[str], used_s: float) -> list[str]:
    """The command with a --time-limit that ends when the first start's would have ended."""
    limit = value_of(command, "--time-limit")
    if limit is None:
        return command
    try:
        left = max(0, round(seconds_of(limit) - used_s))
    except ValueError:
        return command  # it will say so itself
    place = next(i for i, word in enumerate(command) if word.startswith("--time-limit"))
    length = 1 if "=" in command[place] else 2
    return [*command[:place], f"--time-limit={left}", *command[place + length :]]


def _wait_for_run_folder(output_dir: Path, seconds: float) -> None:
    """Wait until no run holds the folder any more; ranks may be on other hosts."""
    for at_most_s in (seconds, _SECONDS_TO_SAVE):
        deadline = time.monotonic() + at_most_s
        while _is_held(output_dir / ".lock"):
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)
        else:
            return
        ask_by_file(output_dir / "stop")  # its launcher is gone, and the run goes on without it


def ask_by_file(path: Path) -> None:
    """Ask the ranks of a run to save and end, wherever they are."""
    with contextlib.suppress(OSError):  # no folder: no run
        path.touch()


def _is_held(lock: Path) -> bool:
    if not lock.is_file():
        return False
    with lock.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False  # a file system without locks
    return False


def _progress_of(output_dir: Path) -> str:
    """Something that changes with every checkpoint."""
    pointer = output_dir / "checkpoints" / "latest"
    return f"{pointer.read_text()} {_changed_at(pointer)}" if pointer.is_file() else ""


def _changed_at(path: Path) -> int:
    return path.stat().st_mtime_ns if path.is_file() else 0


def _status_of(output_dir: Path) -> str:
    summary = output_dir / "summary.json"
    if not summary.is_file():
        return ""
    return str(read_json_object(summary, CheckpointError).get("status", ""))


def _runs(group: int) -> bool:
    """Whether a process of the group does anything; one that has ended and that nobody has asked
    about counts no more."""
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
    """Wait until nothing of the group runs; whether it is so in time."""
    deadline = time.monotonic() + seconds
    while _runs(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def _end_group(group: int) -> None:
    """End what the command has left behind."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not _runs(group):
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)
        _wait_for_group(group, _SECONDS_TO_END)
