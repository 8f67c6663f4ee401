"""Signals set a flag; a second Ctrl-C ends at once."""

from __future__ import annotations

import os
import signal

import pytest

from bert_ds.train.stop import StopFlag, launcher_processes, parent_of


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
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


def test_a_second_interrupt_ends_at_once() -> None:
    with StopFlag():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_process_that_gets_another_parent_is_a_request() -> None:
    assert not StopFlag(launcher_processes()).is_set
    assert StopFlag([(os.getpid(), os.getppid() + 1)]).is_set
    assert parent_of(os.getppid()) > 0
    assert parent_of(2**22 + 1) == 0  # above the largest process number there can be
