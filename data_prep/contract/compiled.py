"""Functions that are compiled to machine code at first use, and kept compiled on disk.

Numba does it, so no compiler need be installed. A compiled function is ordinary Python over NumPy
arrays; `plain` gives the function as it is written, which tests hold the compiled one against.

A compiled function holds what it calls, also from other files, while Numba looks at its own file
alone to see whether it is up to date. So the code is kept in a folder whose name is a hash of all
sources of this package: next to them or, where that cannot be written, in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numpy as np
from numba.core import config

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


_PREFIX = "compiled-"


def compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return `function`, compiled when it is called first; other threads run meanwhile."""
    options: Any = {"nogil": True, "error_model": "numpy"}
    folder = _cache_folder()
    if folder is None:  # it is compiled in every process
        return cast("Callable[Parameters, Result]", numba.njit(**options)(function))
    asked, config.CACHE_DIR = config.CACHE_DIR, str(folder)
    try:
        return cast("Callable[Parameters, Result]", numba.njit(cache=True, **options)(function))
    finally:
        config.CACHE_DIR = asked


@lru_cache(maxsize=1)
def _cache_folder() -> Path | None:
    """Return the folder for code compiled from these sources; None where none can be written."""
    here = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for package in (here, here.with_name("bert_ds")):  # a kernel may call one of another file
        for path in sorted(package.rglob("*.py")):
            source = path.read_bytes()
            if b"compiled" in source:
                digest.update(source)
    name = f"{_PREFIX}{digest.hexdigest()[:16]}"
    asked = os.environ.get("NUMBA_CACHE_DIR")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bert_ds"
    for parent in [Path(asked)] if asked else [here / "__pycache__", cache]:
        if _is_ready(parent / name):
            return parent / name
    return None


def _is_ready(folder: Path) -> bool:
    """Return whether `folder` can be written; make it, and remove those of older sources."""
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.parent.glob(f"{_PREFIX}*"):
                if old.name != folder.name:
                    shutil.rmtree(old, ignore_errors=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def plain(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return a compiled function as it is written; what it calls stays compiled."""
    return cast("Callable[Parameters, Result]", cast(Any, function).py_func)


@compiled
def integer(value: Any) -> int:
    """Return `value` as a signed 64-bit number.

    Compiled code gives a number with a fraction where a signed and an unsigned one are added.
    """
    return np.int64(value)  # type: ignore[return-value]  # one number to compiled code
