"""Error messages about settings: where the mistake is, the rule, and the nearest known key."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from bert_ds.config.former import REMOVED_SETTINGS, RENAMED_SETTINGS


def describe_validation_error(err: ValidationError, model: type[BaseModel]) -> str:
    """Return each problem's path and rule, with the nearest known key for an unknown one."""
    return "; ".join(_describe_problem(problem, model) for problem in err.errors())


def nearest_known(key: str, known: Iterable[str]) -> str:
    """Return what to write for an unknown key: the nearest known one, or else all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"known keys: {', '.join(names)}"


def _describe_problem(problem: Any, model: type[BaseModel]) -> str:
    path, known = _locate(problem["loc"], model)
    if problem["type"] == "extra_forbidden":
        if path in RENAMED_SETTINGS:
            return f"'{path}' has been renamed; write '{RENAMED_SETTINGS[path]}'"
        if path in REMOVED_SETTINGS:
            return f"'{path}' is gone: {REMOVED_SETTINGS[path]}"
        return f"unknown key '{path}'; {nearest_known(path.rpartition('.')[2], known)}"
    if problem["type"] == "missing":
        return f"'{path}' is missing"
    message = problem["msg"].removeprefix("Value error, ")
    shown = problem["input"]
    return f"'{path}': {message}" + (f" (it is {shown!r})" if _is_short(shown) else "")


def _is_short(value: Any) -> bool:
    return isinstance(value, (str, int, float, bool, type(None))) and len(repr(value)) <= 60


def _locate(location: Sequence[Any], model: type[BaseModel]) -> tuple[str, set[str]]:
    """Return pydantic's location as a `--set` path, and the known keys next to its last part.

    Where `kind` selects a model of a union, pydantic puts the kind into the location: it narrows
    the models that the keys may come from, and is no part of the path.
    """
    models, siblings, path = {model}, {model}, []
    for part in location:
        of_kind = {m for m in models if "kind" in m.model_fields and part in _kinds(m)}
        if of_kind:
            models = of_kind
            continue
        path.append(str(part))
        siblings = models
        if isinstance(part, str):
            models = {
                inner
                for candidate in models
                if part in candidate.model_fields
                for inner in _models_within(candidate.model_fields[part].annotation)
            }
    known = {name for candidate in siblings for name in candidate.model_fields}
    return ".".join(path) or model.__name__, known


def _kinds(model: type[BaseModel]) -> tuple[Any, ...]:
    return typing.get_args(model.model_fields["kind"].annotation)


def _models_within(annotation: Any) -> set[type[BaseModel]]:
    is_generic = typing.get_origin(annotation) is not None  # tuple[X, ...] is a type in Python 3.10
    if isinstance(annotation, type) and not is_generic and issubclass(annotation, BaseModel):
        return {annotation}
    return {m for argument in typing.get_args(annotation) for m in _models_within(argument)}
