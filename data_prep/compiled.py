"""Functions that are compiled to machine code at first use, and kept compiled on disk.

Numba does it, so no compiler need be installed. A compiled function is ordinary Python over NumPy
arrays; `plain` gives the function as it is written, which tests hold the compiled one against. The
compiled code lies next to the source or, where that cannot be written, in the user's cache folder
(`NUMBA_CACHE_DIR` names another).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numpy as np

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """`function`, compiled when it is called first; other threads run meanwhile."""
    options: Any = {"nogil": True, "error_model": "numpy"}
    try:
        return cast("Callable[Parameters, Result]", numba.njit(cache=True, **options)(function))
    except RuntimeError:  # no place to keep the compiled code: it is compiled in every process
        return cast("Callable[Parameters, Result]", numba.njit(**options)(function))


def plain(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A compiled function as it is written; what it calls stays compiled."""
    return cast("Callable[Parameters, Result]", cast(Any, function).py_func)


@compiled
def integer(value: Any) -> int:
    """`value` as a signed 64-bit number.

    Compiled code gives a number with a fraction where a signed and an unsigned one meet.
    """
    return np.int64(value)  # type: ignore[return-value]  # one number to compiled code
