"""Nothing that may take long holds the interpreter's lock: a thread says that the rank lives.

In C code that keeps the lock no other thread runs. Threads switch here only where the lock is given
away, not after an interval, so that a single tick shows that it was.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from bert_ds.checkpoint.store import save_checkpoint
from data_prep.contract.compiled import compiled
from tests.unit.bert_ds.checkpoint.test_store import STATE, save

TRIES = 50
"""A call may end before the other thread is woken; one that holds the lock shows no tick ever."""


class Ticks:
    """A thread that counts as long as it is let."""

    def __init__(self) -> None:
        self.count = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._tick)
        self._thread.start()

    def _tick(self) -> None:
        while not self._is_over.wait(0.001):
            self.count += 1

    def watched(self, call: Callable[..., object], seen: list[int]) -> Callable[..., object]:
        """`call`, that notes the ticks from its beginning to its end."""

        def watching(*arguments: object, **named: object) -> object:
            before = self.count
            result = call(*arguments, **named)
            seen.append(self.count - before)
            return result

        return watching

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()


@pytest.fixture
def ticks() -> Iterator[Ticks]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    ticks = Ticks()
    yield ticks
    sys.setswitchinterval(interval)
    ticks.end()


def test_another_thread_runs_while_tensors_are_written(
    ticks: Ticks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 0.8, safetensors held the lock for the whole of a write."""
    seen: list[int] = []
    write = ticks.watched(safetensors.torch.serialize_file, seen)
    monkeypatch.setattr(safetensors.torch, "serialize_file", write)
    weights = {"weight": torch.zeros(1 << 23)}
    while not any(seen) and len(seen) < TRIES:
        save_checkpoint(tmp_path, STATE, weights, {})
    assert any(seen)


def test_another_thread_runs_while_compiled_python_does(ticks: Ticks) -> None:
    @compiled
    def total(values: np.ndarray) -> int:
        found = 0
        for value in values:
            found = (found * 31 + value) % 1_000_003
        return found

    values, seen = np.arange(10_000_000), []
    total(values[:1])  # compiles
    call = ticks.watched(total, seen)
    while not any(seen) and len(seen) < TRIES:
        call(values)
    assert any(seen)


def test_another_thread_runs_while_a_checkpoint_is_opened_for_reading(tmp_path: Path) -> None:
    """A pipe that nobody has written to yet takes the place of a disk that does not answer."""
    folder = save(tmp_path, 4)
    tensors = folder / "weights.safetensors"
    tensors.rename(folder / "whole")
    code = f"""
import os, threading
from pathlib import Path
from bert_ds.checkpoint.content import load_checkpoint
folder = Path({str(folder)!r})
os.mkfifo(folder / "weights.safetensors")
def answer():
    with (folder / "weights.safetensors").open("wb"):
        (folder / "whole").rename(folder / "weights.safetensors")
disk = threading.Timer(1.0, answer)
disk.start()
print(sorted(load_checkpoint(folder).weights))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "['a.bias', 'a.weight']\n", done.stderr
