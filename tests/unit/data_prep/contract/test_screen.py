"""Losing the screen never ends a long job."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import pytest

from data_prep.contract.screen import LastingStream, has_a_screen, lasting_screen, write_to_screen


def pipe_without_a_reader() -> TextIO:
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")


def closed_terminal() -> TextIO:
    main, other = pty.openpty()
    os.close(main)
    return os.fdopen(other, "w")


def full_disk() -> TextIO:
    return Path("/dev/full").open("w")


@pytest.mark.parametrize("make", [pipe_without_a_reader, closed_terminal, full_disk])
def test_a_write_that_fails_is_dropped(make: Callable[[], TextIO]) -> None:
    stream = make()
    with pytest.raises(OSError, match=r"Broken pipe|Input/output error|No space left"):
        print("lost", file=stream, flush=True)
    lasting = LastingStream(stream)
    for _ in range(2):
        print("lost, too", file=lasting, flush=True)
        lasting.writelines(["one\n", "two\n"])
    try:
        stream.close()
    except OSError:
        assert make is full_disk  # a disk may have room again: what is pending is kept


def test_what_can_be_written_is_written_and_the_rest_is_the_streams(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        lasting = LastingStream(stream)
        assert lasting.write("text\n") == 5
        lasting.flush()
        assert (tmp_path / "log").read_text() == "text\n"
        assert lasting.fileno() == stream.fileno()
        assert not lasting.isatty()


def test_the_former_streams_come_back() -> None:
    former = sys.stdout, sys.stderr
    with lasting_screen():
        assert isinstance(sys.stdout, LastingStream)
        assert isinstance(sys.stderr, LastingStream)
    assert (sys.stdout, sys.stderr) == former


def test_a_process_ends_with_its_own_code_where_nobody_reads() -> None:
    """Python flushes its streams at the end and would end with 120 where that fails."""
    program = (
        "from data_prep.contract.screen import lasting_screen\n"
        "import logging, sys\n"
        "with lasting_screen():\n"
        "    logging.basicConfig(stream=sys.stderr)\n"
        "    for _ in range(3):\n"
        "        print('x' * 100000)\n"
        "        logging.warning('lost')\n"
        "sys.exit(75)\n"
    )
    with pipe_without_a_reader() as out, pipe_without_a_reader() as err:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=out, stderr=err, timeout=60, check=False
        )
    assert done.returncode == 75


def test_a_line_reaches_the_terminal_behind_a_pipe() -> None:
    """As in `... 2>&1 | tee log`: standard error is a pipe, and the terminal is still there."""
    pid, main = pty.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        write_to_screen("saving")
        os._exit(0)
    with os.fdopen(main, "rb", buffering=0) as terminal:
        assert terminal.read(100).strip() == b"saving"
    os.waitpid(pid, 0)


def test_a_terminal_of_no_size_gets_plain_lines() -> None:
    main, other = pty.openpty()
    with os.fdopen(main, "rb") as reader, os.fdopen(other, "w") as stream:
        assert stream.isatty()
        assert not has_a_screen(stream)
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        assert has_a_screen(stream)
        assert reader.readable()
