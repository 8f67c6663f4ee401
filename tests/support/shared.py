"""Folders that several tests read and one of the workers of pytest-xdist makes for all."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder of this test session; the first caller makes it, others wait for it.

    Args:
        factory: of pytest.
        name: of the folder, one for the whole session.
        make: fills the folder, which is not there yet. Where it fails the next to ask tries again.

    Returns:
        The folder. Tests on other workers read it at the same time: nobody may write to it.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # that of all workers
    folder, is_made = base / name, base / f"{name}.made"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            is_made.touch()
    return folder
