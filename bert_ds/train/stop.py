"""Stopping on request: SIGTERM, SIGINT and SIGUSR1 end the run at the next update, with its state.

A signal sets a flag on the rank that got it; the loop asks for the flag of any rank with the counts
that it sums before every update, so that all ranks stop at the same one. A second Ctrl-C ends at
once. (Launchers send SIGTERM after the terminal's SIGINT: that is no second Ctrl-C.)
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopFlag:
    """Remembers that a stop was asked for; a context manager that holds the signal handlers."""

    def __init__(self) -> None:
        self.signal_name: str | None = None
        self._num_interrupts = 0
        self._former: dict[signal.Signals, Any] = {}

    @property
    def is_set(self) -> bool:
        """Whether this rank was asked to stop."""
        return self.signal_name is not None

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
