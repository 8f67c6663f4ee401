"""Functions stay short and take few parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_LINES = 60
"""Of a function with its signature, without its docstring."""
MOST_PARAMETERS = 8
"""Positional and keyword parameters, without self and cls."""
COMPILED = ("compiled", "jit", "njit", "custom_op", "register_fake", "register_autograd")
"""Decorators of kernels, whose arguments are arrays and sizes and have no other form."""
SETTINGS = {"bert_ds/optim/lamb.py": {"__init__"}}
"""Public optimizers, whose keyword parameters are their settings."""

SOURCES = sorted(
    path for package in ("bert_ds", "data_prep") for path in (ROOT / package).rglob("*.py")
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions_of(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, Function):
            yield node


def num_lines(function: Function) -> int:
    docstring = function.body[0] if ast.get_docstring(function) is not None else None
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    if docstring is not None and docstring.end_lineno is not None:
        lines -= docstring.end_lineno - docstring.lineno + 1
    return lines


def num_parameters(function: Function) -> int:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in named)


def is_kernel(function: Function) -> bool:
    decorators = " ".join(ast.unparse(decorator) for decorator in function.decorator_list)
    return any(word in decorators for word in COMPILED)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_are_short_and_take_few_parameters(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    for function in functions_of(path):
        where = f"{name}:{function.lineno} {function.name}"
        assert is_kernel(function) or num_lines(function) <= MOST_LINES, where
        if not is_kernel(function) and function.name not in SETTINGS.get(name, ()):
            assert num_parameters(function) <= MOST_PARAMETERS, where


def test_what_the_test_counts() -> None:
    (function,) = ast.parse(
        'def f(self, a, /, b, *, c):\n    """Two\n    lines."""\n    return a\n'
    ).body
    assert isinstance(function, ast.FunctionDef)
    assert (num_lines(function), num_parameters(function), is_kernel(function)) == (2, 3, False)
