"""Progress on standard error: a bar on a terminal, elsewhere a plain line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from data_prep.contract.screen import has_a_screen

_LINE_EVERY_S = 5.0


class Progress:
    """Counts what is done of a known amount; a context manager.

    Args:
        label: what is done.
        total: amount of all.
        unit: of the amounts: "B" is shown with prefixes.
        is_shown: False shows nothing (other ranks).
        clock: seconds; an argument for tests.
    """

    def __init__(
        self,
        label: str,
        total: int,
        unit: str,
        is_shown: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label, self._total, self._unit, self._clock = label, total, unit, clock
        self._done = self._before = 0
        self._is_shown = is_shown
        self._started = self._printed = clock()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if self._is_shown and has_a_screen(sys.stderr):
            from tqdm import tqdm

            self._bar = tqdm(
                desc=self._label, total=self._total, unit=self._unit, unit_scale=self._unit == "B"
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        left = self._total - self._done if kind is None else 0  # what other ranks did
        self._done += left
        if self._bar is not None:
            self._bar.update(left)
            self._bar.close()
        elif self._is_shown and kind is None:
            self._print()

    def start_at(self, amount: int) -> None:
        """Count `amount` as done before the clock began to run."""
        self._before = amount
        self._done += amount
        if self._bar is not None:
            self._bar.initial = self._bar.n = amount
            self._bar.refresh()

    def advance(self, amount: int) -> None:
        """Count `amount` more as done."""
        self._done += amount
        if self._bar is not None:
            self._bar.update(amount)
        elif self._is_shown and self._clock() - self._printed >= _LINE_EVERY_S:
            self._printed = self._clock()
            self._print()

    def _print(self) -> None:
        """Print one plain line."""
        scale, unit = (1e6, "MB") if self._unit == "B" else (1.0, self._unit)
        elapsed_s = self._clock() - self._started
        print(
            f"{self._label}: {self._done / scale:.10g} of {self._total / scale:.10g} {unit}, "
            f"{elapsed_s:.0f} s{self._time_left(elapsed_s)}",
            file=sys.stderr,
            flush=True,
        )

    def _time_left(self, elapsed_s: float) -> str:
        """Return the time left at the speed so far; empty where nothing or everything is done."""
        done, left = self._done - self._before, self._total - self._done
        if done <= 0 or left <= 0:
            return ""
        seconds = round(elapsed_s * left / done)
        minutes, hours = seconds // 60, seconds // 3600
        if hours:
            return f", about {hours} h {minutes % 60} min left"
        return f", about {minutes} min left" if minutes else f", about {seconds} s left"
