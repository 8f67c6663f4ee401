"""The screen: what can be shown there, and a long job that goes on where it goes away.

The reader of standard output and standard error can end first: `tee` dies of the same Ctrl-C, a
terminal is closed, the disk that holds a log fills up. A write then raises OSError in whatever code
happens to log at that moment, and training would end without a checkpoint, or a preparation
half-way. With `lasting_screen` such a write is dropped.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO, cast

_GONE = (errno.EPIPE, errno.EIO)
"""The reader of a pipe has ended; the terminal has been closed. Neither comes back."""


class LastingStream:
    """A text stream whose writes never fail; everything else is the wrapped stream's."""

    def __init__(self, stream: TextIO) -> None:
        """Wrap `stream`."""
        self._stream = stream

    def write(self, text: str) -> int:
        """Write `text`, or drop it where nobody can read it."""
        with self._lost_quietly():
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each of `lines` likewise."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the stream, or drop what is pending."""
        with self._lost_quietly():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _lost_quietly(self) -> Iterator[None]:
        try:
            yield
        except OSError as err:
            if err.errno in _GONE:
                self._discard_from_now_on()

    def _discard_from_now_on(self) -> None:
        """Send everything to /dev/null: pending text would fail once more when Python ends."""
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())


def has_a_screen(stream: TextIO) -> bool:
    """Return whether a bar can be drawn: a terminal, but none of no size, as in containers."""
    if not stream.isatty():
        return False
    try:
        size = os.get_terminal_size(stream.fileno())
    except OSError:
        return True  # a terminal that does not know its size
    return size.columns > 0 and size.lines > 0


@contextlib.contextmanager
def lasting_screen() -> Iterator[None]:
    """Let `sys.stdout` and `sys.stderr` be streams whose writes never fail."""
    former = sys.stdout, sys.stderr
    lasting = [LastingStream(stream) for stream in former]
    sys.stdout, sys.stderr = (cast(TextIO, stream) for stream in lasting)
    try:
        yield
    finally:
        for stream in lasting:
            stream.flush()
        sys.stdout, sys.stderr = former


def within(seconds: float, action: Callable[[], None]) -> None:
    """Run an action that may block forever; return after `seconds` at the latest."""
    thread = threading.Thread(target=action, name="within", daemon=True)
    thread.start()
    thread.join(timeout=seconds)


def show_last_words(text: str) -> None:
    """Write the message of a process that ends, and what is pending, wherever that is possible.

    Writing to a pipe that is full and that nobody reads blocks: call it by `within`.
    """
    for stream, own in ((sys.stderr, text), (sys.stdout, "")):
        with contextlib.suppress(OSError, ValueError):  # ValueError: a closed file
            stream.write(own)
            stream.flush()


def write_to_screen(line: str) -> None:
    """Write a line for the person at the terminal; safe in a signal handler, and never fails.

    It goes to standard error, unbuffered, and where that is no terminal also to the terminal that
    the process was started from: the `tee` in between dies of the same Ctrl-C.
    """
    text = f"{line}\n".encode()
    with contextlib.suppress(OSError):
        os.write(2, text)
    if not os.isatty(2):
        with contextlib.suppress(OSError), open("/dev/tty", "wb", buffering=0) as terminal:
            terminal.write(text)
