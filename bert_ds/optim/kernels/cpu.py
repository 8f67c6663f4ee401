"""The fused kernel for CPUs: `lamb.c`, called through ctypes over a table of fragments.

What makes this hard: C gets addresses and not tensors, and checks nothing. Everything that an
address stands for must be alive, contiguous and float32 during a call: `StepInputs` holds the
tensors, and local names hold the table and the arrays until `apply_update` has run. The order of
the table's columns and of the fields below is that of the structures in lamb.c; a change on one
side alone corrupts memory.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from bert_ds.optim.kernels.base import ApplyUpdate, StepInputs
from bert_ds.optim.kernels.build import load_library
from bert_ds.optim.lamb_rule import LambRule
from bert_ds.optim.rule import ELEMENTS, GRADIENT

SOURCE = Path(__file__).with_name("lamb.c")
_BYTES = 4  # of a float32
_Table: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class _Coefficients(ctypes.Structure):
    """The structure `Coefficients` of lamb.c."""

    _fields_ = (
        ("gradient_scale", ctypes.c_float),
        ("beta1", ctypes.c_float),
        ("beta2", ctypes.c_float),
        ("beta3", ctypes.c_float),
        ("beta2_rest", ctypes.c_float),
        ("inverse_correction1", ctypes.c_float),
        ("inverse_correction2", ctypes.c_float),
        ("eps", ctypes.c_float),
        ("weight_decay", ctypes.c_float),
        ("step_size", ctypes.c_double),
        ("lowest", ctypes.c_double),
        ("highest", ctypes.c_double),
        ("is_exempt", ctypes.c_int32),
    )


class CpuKernel:
    """LAMB in float32 on CPUs, with as many threads as torch has."""

    name = "cpu"
    build: str
    """How the library was built, in a few words."""

    def __init__(self) -> None:
        """Build or load the library.

        Raises:
            BuildError: It cannot be built here.
        """
        self._library, self.build = _load()

    def begin(self, inputs: StepInputs, sums: torch.Tensor) -> ApplyUpdate:
        """Do what `Kernel.begin` does, and move the weights of whole parameters already."""
        table, parameters = _fragment_table(inputs)
        count = len(table)
        assert isinstance(inputs.rule, LambRule)
        coefficients = _pack(inputs.rule, inputs.divisor)
        num_threads = torch.get_num_threads()
        if count:
            squares = np.zeros((3, count))
            block = self._library.lamb_block()
            partial = np.empty(3 * (int(table[:, 5].max()) // block + 1))
            self._library.lamb_advance(
                _pointer(table), count, ctypes.byref(coefficients), _pointer(squares),
                _pointer(partial), num_threads,
            )  # fmt: skip
            sums[: GRADIENT + 1].index_add_(1, parameters, torch.from_numpy(squares))
            sums[ELEMENTS].index_add_(0, parameters, torch.from_numpy(table[:, 5]).double())

        def apply_update(multipliers: torch.Tensor) -> None:
            if count and not table[:, 6].all():
                chosen = np.ascontiguousarray(multipliers[parameters].numpy())
                self._library.lamb_apply(
                    _pointer(table), count, ctypes.byref(coefficients), _pointer(chosen),
                    num_threads,
                )  # fmt: skip

        return apply_update


@functools.cache
def _load() -> tuple[ctypes.CDLL, str]:
    with _threads_that_soon_sleep():
        library, description = load_library(SOURCE)
    pointer, int64, threads = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    library.lamb_advance.argtypes = (pointer, int64, pointer, pointer, pointer, threads)
    library.lamb_apply.argtypes = (pointer, int64, pointer, pointer, threads)
    library.lamb_advance.restype = library.lamb_apply.restype = None
    library.lamb_block.restype = int64
    return library, description


@contextmanager
def _threads_that_soon_sleep() -> Iterator[None]:
    """Let OpenMP's idle threads spin for microseconds only, where it is loaded for us alone.

    torch's wheels bring an OpenMP of their own. Threads of ours that wait for the next step, by
    default for milliseconds and at full speed, would take cores from torch's. OpenMP reads these
    variables once, as it is loaded.
    """
    chosen = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "0"}
    if any(name in os.environ for name in (*chosen, "OMP_WAIT_POLICY")):
        yield
        return
    os.environ.update(chosen)
    try:
        yield
    finally:
        for name in chosen:
            del os.environ[name]


def _fragment_table(inputs: StepInputs) -> tuple[_Table, torch.Tensor]:
    """Return a row a fragment as lamb.c's `Fragment`, and each fragment's parameter number."""
    rows, parameters = [], []
    for flat in inputs.tensors:
        places = [t.data_ptr() for t in (flat.weight, flat.gradient, flat.exp_avg, flat.exp_avg_sq)]
        for fragment in flat.fragments:
            offset = _BYTES * fragment.flat_start
            is_whole = fragment.numel == inputs.numels[fragment.parameter]
            kept = places[1] + offset if flat.may_overwrite_gradient and is_whole else 0
            pointers = (place + offset for place in places)
            rows.append((*pointers, kept, fragment.numel, int(is_whole)))
            parameters.append(fragment.parameter)
    table = np.array(rows, dtype=np.int64).reshape(len(rows), 7)
    return table, torch.tensor(parameters, dtype=torch.int64)


def _pack(c: LambRule, divisor: torch.Tensor | None) -> _Coefficients:
    return _Coefficients(
        1.0 if divisor is None else 1.0 / float(divisor),
        c.beta1, c.beta2, c.beta3, 1.0 - c.beta2, 1.0 / c.correction1, 1.0 / c.correction2, c.eps,
        c.weight_decay, c.step_size, c.lowest, c.highest, int(c.is_exempt),
    )  # fmt: skip


def _pointer(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
