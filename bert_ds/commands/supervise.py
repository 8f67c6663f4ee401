"""`bert-ds supervise`: start a training command again, from its last checkpoint, when it fails.

It starts the launcher, so it works with all of them: a launcher ends all ranks when one fails, and
the next start resumes from the checkpoint. It ends where another start would not help: with wrong
settings, and after a requested stop.
"""

from __future__ import annotations

import argparse
import enum
import fcntl
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bert_ds.checkpoint.pointers import latest
from bert_ds.commands.lost_hosts import on_hosts_left, value_of, with_value
from bert_ds.commands.supervised_process import (
    SECONDS_TO_END,
    SECONDS_TO_SAVE,
    SupervisedProcess,
    ask_by_file,
)
from bert_ds.durations import seconds_of
from bert_ds.errors import BertDsError, CheckpointError, ConfigError, StopRequested
from bert_ds.files import read_json_object

if TYPE_CHECKING:
    from bert_ds.commands.arguments import Commands
    from bert_ds.distributed.world import World


class SupervisedError(BertDsError):
    """The command has failed more often than is allowed."""


class Outcome(enum.Enum):
    """What follows from one run of the command; the value is the message."""

    COMPLETE = "everything is trained"
    STOPPED = "the run has stopped on request; the same command resumes it"
    STOPPED_UNSAVED = (
        "asked to stop, and the run has not recorded that it saved its state: the same command "
        "resumes from its last checkpoint"
    )
    WRONG_SETTINGS = "the command cannot run as it is (see above); it is not started again"
    FAILED = "another start resumes from the last checkpoint"


_ERRORS = {
    Outcome.STOPPED: StopRequested,
    Outcome.STOPPED_UNSAVED: StopRequested,
    Outcome.WRONG_SETTINGS: ConfigError,
}


def classify(code: int, status: str, *, asked_to_stop: bool, has_trained: bool) -> Outcome:
    """Decide what follows from one run of the command.

    Args:
        code: its exit code.
        status: the run folder's status, if this run of the command has written it; `complete` also
            where an earlier one has.
        asked_to_stop: whether supervise was asked to stop.
        has_trained: whether this or an earlier run of the command has trained. Then wrong settings
            may be data that is away for a while.
    """
    if code == 0 and status == "complete":
        return Outcome.COMPLETE
    if status == "interrupted" or code == StopRequested.exit_code:
        return Outcome.STOPPED
    if asked_to_stop:
        return Outcome.STOPPED_UNSAVED
    if code == ConfigError.exit_code and not has_trained:
        return Outcome.WRONG_SETTINGS
    return Outcome.FAILED


def add_parser(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "supervise",
        help="run a training command, under any launcher, and start it again when it fails",
        description="Run a command that trains. When it fails it is started again and resumes from "
        "its last checkpoint. Wrong settings and a requested stop end it.",
        epilog="Example: bert-ds supervise --max-restarts 3 -- deepspeed --hostfile HOSTS --module "
        "bert_ds pretrain --recipe bert-large --data DATA --output-dir RUN",
    )
    parser.add_argument(
        "--max-restarts", type=int, default=3, metavar="N",
        help="starts after failures without a new checkpoint in between (default 3); with wrong "
        "settings there are none",
    )  # fmt: skip
    parser.add_argument(
        "--pause", type=float, default=10.0, metavar="S", help="seconds before (default 10)"
    )
    parser.add_argument(
        "--drop-lost-hosts", action="store_true",
        help="before each start, leave out the hosts of the command's --hostfile that do not "
        "answer ssh, as far as the batch divides over the others",
    )  # fmt: skip
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    parser.set_defaults(execute=run, is_training=True)


def run(arguments: argparse.Namespace, world: World) -> None:
    """Run the command until it is done, or has failed too often without a new checkpoint.

    Raises:
        ConfigError: it is no command that can be supervised, or its settings are wrong.
        StopRequested: a stop was requested.
        SupervisedError: it failed more often than is allowed.
    """
    words = arguments.program
    command = words[1:] if words[:1] == ["--"] else words
    _check(arguments, command)
    if "--dry-run" in command:
        _run_without_training(command)
        return
    output_dir = Path(value_of(command, "--output-dir") or "")
    on_hosts = value_of(command, "--hostfile") is not None
    supervised = SupervisedProcess(output_dir / "stop" if on_hosts else None)
    supervised.catch_stop_signals()
    began, failures, has_trained = time.monotonic(), 0, False
    while True:
        present = on_hosts_left(command, output_dir) if arguments.drop_lost_hosts else command
        if supervised.asked_to_stop:
            raise StopRequested("asked to stop before the next start of the command")
        before, started = _RunTraces.of(output_dir), time.monotonic()
        code = supervised.run_once(_with_the_time_left(present, started - began))
        # ranks on other hosts may save, or end, when the launcher here is gone
        asked_to_stop = supervised.asked_to_stop
        _wait_for_run_folder(output_dir, SECONDS_TO_SAVE if asked_to_stop else SECONDS_TO_END)
        after = _RunTraces.of(output_dir)
        has_trained = has_trained or after.summary_changed_at != before.summary_changed_at
        outcome = classify(
            code,
            after.status_since(before),
            asked_to_stop=supervised.asked_to_stop,
            has_trained=has_trained,
        )
        if outcome is Outcome.COMPLETE:
            return
        if outcome is not Outcome.FAILED:
            raise _ERRORS[outcome](outcome.value)
        failures = 1 if after.checkpoint != before.checkpoint else failures + 1
        ending = f"the command ended with code {code} after {time.monotonic() - started:.0f} s"
        reason = f"{supervised.reason} ({ending})" if supervised.reason else ending
        _pause_before_restart(arguments, reason, failures, output_dir)


@dataclass(frozen=True)
class _RunTraces:
    """The traces in a run folder that show whether a run has trained and saved meanwhile."""

    checkpoint: tuple[Path | None, int]
    """The newest checkpoint and when it was written, in nanoseconds."""
    summary_changed_at: int
    """When summary.json was written, in nanoseconds; 0 where there is none."""
    status: str
    """The run's status in summary.json."""

    @classmethod
    def of(cls, output_dir: Path) -> _RunTraces:
        """Look into a run folder, which may not be there yet."""
        summary = output_dir / "summary.json"
        content = read_json_object(summary, CheckpointError) if summary.is_file() else {}
        newest = latest(output_dir / "checkpoints")
        written_at = _changed_at(newest / "manifest.json") if newest is not None else 0
        return cls((newest, written_at), _changed_at(summary), str(content.get("status", "")))

    def status_since(self, before: _RunTraces) -> str:
        """Return the status; an interruption counts only where it was written since then."""
        is_old = self.summary_changed_at == before.summary_changed_at
        return "" if is_old and self.status == "interrupted" else self.status


def _pause_before_restart(
    arguments: argparse.Namespace, reason: str, failures: int, output_dir: Path
) -> None:
    """Log the failure and wait, or raise SupervisedError where it is one too many."""
    if failures > arguments.max_restarts:
        raise SupervisedError(
            f"{reason}; failure {failures} since the last new checkpoint in {output_dir}, "
            f"--max-restarts {arguments.max_restarts}"
        )
    sys.stderr.write(
        f"bert-ds supervise: {reason}; starting it again (restart {failures} of "
        f"{arguments.max_restarts} since the last new checkpoint)\n"
    )
    sys.stderr.flush()
    time.sleep(arguments.pause)


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
            f"there is no hostfile {hostfile}; deepspeed would train on this machine "
            "alone without a warning; name the file that lists the hosts"
        )
    resume = value_of(command, "--resume")
    if resume not in (None, "auto"):
        raise ConfigError(
            f"supervise needs --resume auto, the default: with --resume {resume} a second start "
            "would not resume from where the first has stopped; begin without supervise"
        )


def _run_without_training(command: list[str]) -> None:
    """Run a dry run of the command.

    Raises:
        ConfigError: it has failed, and printed why.
    """
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        raise ConfigError(f"the dry run ended with code {code} (see above)")


def _with_the_time_left(command: list[str], used_s: float) -> list[str]:
    """Return the command with what is left of the first start's --time-limit."""
    limit = value_of(command, "--time-limit")
    if limit is None:
        return command
    try:
        left = max(0, round(seconds_of(limit) - used_s))
    except ValueError:
        return command  # it reports that itself
    return with_value(command, "--time-limit", str(left))


def _wait_for_run_folder(output_dir: Path, seconds: float) -> None:
    """Wait until no run holds the folder any more; ranks may be on other hosts.

    Its launcher is gone, so a run that holds the folder longer than that is asked to stop.
    """
    for at_most_s in (seconds, SECONDS_TO_SAVE):
        deadline = time.monotonic() + at_most_s
        while _is_held(output_dir / ".lock"):
            if time.monotonic() > deadline:
                ask_by_file(output_dir / "stop")
                break
            time.sleep(0.2)
        else:
            return


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


def _changed_at(path: Path) -> int:
    return path.stat().st_mtime_ns if path.is_file() else 0
