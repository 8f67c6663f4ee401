"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from data_prep.contract.errors import OutputError
from data_prep.running.files import atomic_file, output_error


def test_a_file_that_fails_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), atomic_file(path) as file:
        file.write(b"new")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    with atomic_file(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"


def test_errors_of_output_say_what_to_do(tmp_path: Path) -> None:
    full = output_error(tmp_path / "none" / "a", OSError(errno.ENOSPC, "full"))
    assert "disk is full" in str(full)
    assert "run the same command again" in str(full)
    with pytest.raises(OutputError, match=r"No such file or directory.*choose another output"):
        with atomic_file(tmp_path / "none" / "a"):
            pass
