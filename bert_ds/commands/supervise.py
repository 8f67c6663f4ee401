"""`bert-ds supervise`: start a training command again, from its last checkpoint, when it fails.

It stands above the launcher, so it serves all of them: a launcher ends all ranks when one fails,
and the next start goes on from the checkpoint. What cannot be mended by starting again (wrong
settings, a stop that was asked for) is not started again.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from bert_ds.errors import BertDsError, CheckpointError, ConfigError, StopRequested
from bert_ds.files import read_json_object

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_SECONDS_TO_END = 30.0


class SupervisedError(BertDsError):
    """The command has failed for good."""


@dataclass
class _Supervisor:
    """Runs one command after the other, and hands signals on to the one that runs."""

    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    asked_to_stop: bool = field(default=False)

    def run_once(self) -> int:
        """The command's exit code; nothing of its process group is left."""
        self.process = subprocess.Popen(self.command, start_new_session=True)
        try:
            return self.process.wait()
        finally:
            _end_group(self.process.pid)

    def hand_on(self, number: int, frame: FrameType | None) -> None:
        """A signal handler."""
        self.asked_to_stop = True
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, number)


def run(arguments: argparse.Namespace) -> None:
    """Run the command until it is done, or has failed too often without a new checkpoint.

    Raises:
        ConfigError: there is no command, or it has no --output-dir, or it asks for what is wrong.
        StopRequested: a stop was asked for; the state is saved.
        SupervisedError: it failed more often than is allowed.
    """
    command = [word for word in arguments.program if word != "--"]
    output_dir = _output_dir_of(command)
    if arguments.max_restarts < 0 or arguments.pause < 0:
        raise ConfigError("--max-restarts and --pause must not be negative")
    supervisor = _Supervisor(command)
    for number in _FORWARDED:
        signal.signal(number, supervisor.hand_on)
    failures = 0
    while True:
        before, started = _progress_of(output_dir), time.monotonic()
        code = supervisor.run_once()
        status = _status_of(output_dir)
        if code == 0 and status == "complete":
            return
        if code == ConfigError.exit_code:
            raise ConfigError(
                "the command cannot run as it is (see above); it is not started again"
            )
        if supervisor.asked_to_stop or status == "interrupted":
            raise StopRequested("the run was asked to stop; the same command goes on with it")
        failures = 1 if _progress_of(output_dir) != before else failures + 1
        told = f"the command ended with code {code} after {time.monotonic() - started:.0f} s"
        if failures > arguments.max_restarts:
            raise SupervisedError(
                f"{told}, {failures} time{'s' if failures > 1 else ''} without a new checkpoint in "
                f"{output_dir}; --max-restarts {arguments.max_restarts}"
            )
        sys.stderr.write(
            f"bert-ds supervise: {told}; starting it again ({failures} of "
            f"{arguments.max_restarts} without a new checkpoint)\n"
        )
        sys.stderr.flush()
        time.sleep(arguments.pause)
        if supervisor.asked_to_stop:
            raise StopRequested("asked to stop between two starts")


def _output_dir_of(command: list[str]) -> Path:
    for index, word in enumerate(command):
        if word == "--output-dir" and index + 1 < len(command):
            return Path(command[index + 1])
        if word.startswith("--output-dir="):
            return Path(word.partition("=")[2])
    raise ConfigError(
        "supervise needs a command that trains, with its --output-dir: bert-ds supervise "
        f"--max-restarts 3 -- deepspeed ... --module bert_ds pretrain ...; it is "
        f"'{shlex.join(command)}'"
    )


def _progress_of(output_dir: Path) -> str:
    """Something that changes with every checkpoint."""
    pointer = output_dir / "checkpoints" / "latest"
    return f"{pointer.read_text()} {pointer.stat().st_mtime_ns}" if pointer.is_file() else ""


def _status_of(output_dir: Path) -> str:
    summary = output_dir / "summary.json"
    if not summary.is_file():
        return ""
    return str(read_json_object(summary, CheckpointError).get("status", ""))


def _end_group(group: int) -> None:
    """End what the command has left behind."""
    deadline = time.monotonic() + _SECONDS_TO_END
    number = signal.SIGTERM
    while True:
        try:
            os.killpg(group, number)
        except (ProcessLookupError, PermissionError):
            return
        time.sleep(0.2)
        if time.monotonic() > deadline:
            number = signal.SIGKILL
