"""Signals set a flag and are acknowledged; a second Ctrl-C abandons the state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bert_ds.train.stop import SECONDS_TO_READ, StopFlag, launcher_processes, parent_of


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_sets_the_flag_and_handlers_are_given_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopFlag() as stop:
        assert not stop.is_set
        os.kill(os.getpid(), number)
        assert stop.is_set
        assert stop.signal_name == number.name
    assert signal.getsignal(number) == before


def test_a_terminals_interrupt_and_the_launchers_sigterm_are_one_request() -> None:
    with StopFlag() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_set


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_interrupts_in_quick_succession_are_one_request() -> None:
    lines: list[str] = []
    with StopFlag(acknowledge=lines.append, clock=Clock()) as stop:
        for _ in range(5):
            interrupt()
        assert stop.is_set
    assert lines == [
        "\nbert-ds: Ctrl-C: saving the state after this update; press it once more, 3 seconds from "
        "now or later, to abandon it"
    ]


def test_an_interrupt_after_the_acknowledgement_could_be_read_abandons_the_state() -> None:
    clock = Clock()
    with StopFlag(clock=clock):
        interrupt()
        clock.now += SECONDS_TO_READ - 0.1
        interrupt()
        clock.now += 0.1
        with pytest.raises(KeyboardInterrupt):
            interrupt()


def test_an_interrupt_after_another_request_does_not_abandon_it() -> None:
    lines: list[str] = []
    with StopFlag(acknowledge=lines.append, clock=Clock()) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        interrupt()
        assert stop.is_set
    assert lines[0] == "bert-ds: SIGTERM: saving the state after this update"
    assert "Ctrl-C: saving" in lines[1]


def test_signals_that_follow_a_stop_do_not_change_the_exit_code() -> None:
    program = (
        "import atexit, os, signal, sys\n"
        "from bert_ds.errors import StopRequested\n"
        "from bert_ds.train.stop import StopFlag\n"
        "class Last:\n"
        "    def __del__(self, kill=os.kill, process=os.getpid()):\n"
        "        kill(process, 2), kill(process, 15)\n"  # after Python has cleared its handlers
        "sys.last = Last()\n"
        "try:\n"
        "    with StopFlag():\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        raise StopRequested('saved')\n"
        "except StopRequested:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    sys.exit(75)\n"
    )
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, timeout=60, check=False).returncode == 75


def test_what_else_asks_for_a_stop_is_acknowledged_once(tmp_path: Path) -> None:
    clock, lines = Clock(), []
    timed = StopFlag(deadline=101.0, acknowledge=lines.append, clock=clock)
    filed = StopFlag(file=tmp_path / "stop", acknowledge=lines.append, clock=clock)
    orphaned = StopFlag([(os.getpid(), os.getppid() + 1)], acknowledge=lines.append)
    assert not timed.is_set
    assert not filed.is_set
    clock.now += 1.0
    (tmp_path / "stop").touch()
    for flag in (timed, timed, filed, filed, orphaned):
        assert flag.is_set
    causes = [line.removeprefix("bert-ds: ").partition(": saving")[0] for line in lines]
    assert causes == [
        "the run's time is up",
        f"{tmp_path / 'stop'} asks for a stop",
        "the launcher has ended",
    ]


def test_under_nohup_a_closed_terminal_asks_for_nothing() -> None:
    program = (
        "import os, signal\n"
        "from bert_ds.train.stop import StopFlag\n"
        "with StopFlag() as stop:\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "    print(stop.is_set)\n"
    )
    command = [sys.executable, "-c", program]
    for words, outcome in ((command, "True"), (["nohup", *command], "False")):
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.strip() == outcome


def test_a_process_that_gets_another_parent_is_a_request() -> None:
    assert not StopFlag(launcher_processes()).is_set
    assert StopFlag([(os.getpid(), os.getppid() + 1)]).is_set
    assert parent_of(os.getppid()) > 0
    assert parent_of(2**22 + 1) == 0  # above the largest process number there can be
