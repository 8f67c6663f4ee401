"""From a recipe folder and `--set` overrides to a validated `RunConfig`.

Precedence: defaults < recipe < `--set a.b=c`. All checks happen here, before torch.distributed
starts, so that a wrong key costs a second and not an allocation.
"""

from __future__ import annotations

import difflib
import json
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from bert_ds.config.recipe import RunConfig
from bert_ds.errors import ConfigError
from bert_ds.files import read_json_object


def load_run_config(recipe: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a recipe folder, apply overrides, validate.

    Args:
        recipe: folder that holds `recipe.json` and the DeepSpeed JSONs that it names.
        overrides: `path=value` each; the value is JSON, or a plain string where it is not. A path
            that begins with `deepspeed.` applies to every phase, `phases.1.deepspeed.` to one.

    Raises:
        ConfigError: a file is missing or not JSON, a key is unknown, a value is out of range.
    """
    tree = _read_recipe(recipe)
    for override in overrides:
        _apply_override(tree, override)
    return validate_run_config(tree, where=str(recipe))


def validate_run_config(tree: dict[str, Any], where: str) -> RunConfig:
    """Build a `RunConfig` from plain JSON values; errors name `where`, the key and its rule."""
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as err:
        raise ConfigError(f"{where}: " + describe_validation_error(err, RunConfig)) from err


def describe_validation_error(err: ValidationError, model: type[BaseModel]) -> str:
    """One line a problem: its path, what is wrong, and the nearest known key for an unknown one."""
    return "; ".join(_describe_problem(problem, model) for problem in err.errors())


def nearest_known(key: str, known: Iterable[str]) -> str:
    """The way out for an unknown key: the nearest known one where there is one, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"known keys: {', '.join(names)}"


def _read_recipe(recipe: Path) -> dict[str, Any]:
    if not recipe.is_dir():
        raise ConfigError(
            f"no recipe folder at {recipe.absolute()}; a recipe is a folder with a recipe.json, as "
            "those in ds_configs/ of the source tree"
        )
    tree = read_json_object(recipe / "recipe.json", ConfigError)
    tree.setdefault("recipe", recipe.resolve().name)
    if isinstance(tree.get("init_from"), str):
        tree["init_from"] = str(recipe / tree["init_from"])
    phases = tree.get("phases")
    for phase in phases if isinstance(phases, list) else []:
        if isinstance(phase, dict) and isinstance(phase.get("deepspeed"), str):
            phase["deepspeed"] = read_json_object(recipe / phase["deepspeed"], ConfigError)
    return tree


def _apply_override(tree: dict[str, Any], override: str) -> None:
    path, separator, text = override.partition("=")
    keys = path.strip().split(".")
    if not separator or not all(keys):
        raise ConfigError(f"--set needs key=value, such as model.hidden_size=256; got '{override}'")
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = text
    phases = tree.get("phases")
    if keys[0] == "deepspeed" and isinstance(phases, list):
        for index in range(len(phases)):
            _set_in(tree, ["phases", str(index), *keys], value, override)
    else:
        _set_in(tree, keys, value, override)


def _set_in(tree: dict[str, Any], keys: Sequence[str], value: Any, override: str) -> None:
    node: Any = tree
    for depth, key in enumerate(keys):
        is_last = depth == len(keys) - 1
        if isinstance(node, list):
            if not (key.isascii() and key.isdigit()) or int(key) >= len(node):
                raise ConfigError(
                    f"--set {override}: '{key}' must be an index from 0 to {len(node) - 1} of "
                    f"{'.'.join(keys[:depth])}"
                )
            slot: Any = int(key)
        elif isinstance(node, dict):
            slot = key
            if not is_last:
                node.setdefault(slot, {})
        else:
            raise ConfigError(
                f"--set {override}: {'.'.join(keys[:depth])} is a plain value, it has no '{key}'"
            )
        if is_last:
            node[slot] = value
        else:
            node = node[slot]


def _describe_problem(problem: Any, model: type[BaseModel]) -> str:
    path, known = _locate(problem["loc"], model)
    if problem["type"] == "extra_forbidden":
        return f"unknown key '{path}'; {nearest_known(path.rpartition('.')[2], known)}"
    if problem["type"] == "missing":
        return f"'{path}' is missing"
    message = problem["msg"].removeprefix("Value error, ")
    shown = problem["input"]
    return f"'{path}': {message}" + (f" (it is {shown!r})" if _is_short(shown) else "")


def _is_short(value: Any) -> bool:
    return isinstance(value, (str, int, float, bool, type(None))) and len(repr(value)) <= 60


def _locate(location: Sequence[Any], model: type[BaseModel]) -> tuple[str, set[str]]:
    """Pydantic's location as a `--set` path, and the keys that are known beside its last part.

    Where a union is told apart by `kind`, pydantic puts the kind into the location: it narrows the
    models that the keys may come from, and is no part of the path.
    """
    models, beside, path = {model}, {model}, []
    for part in location:
        of_kind = {m for m in models if "kind" in m.model_fields and part in _kinds(m)}
        if of_kind:
            models = of_kind
            continue
        path.append(str(part))
        beside = models
        if isinstance(part, str):
            models = {
                inner
                for candidate in models
                if part in candidate.model_fields
                for inner in _models_within(candidate.model_fields[part].annotation)
            }
    known = {name for candidate in beside for name in candidate.model_fields}
    return ".".join(path) or model.__name__, known


def _kinds(model: type[BaseModel]) -> tuple[Any, ...]:
    return typing.get_args(model.model_fields["kind"].annotation)


def _models_within(annotation: Any) -> set[type[BaseModel]]:
    is_generic = typing.get_origin(annotation) is not None  # tuple[X, ...] is a type in Python 3.10
    if isinstance(annotation, type) and not is_generic and issubclass(annotation, BaseModel):
        return {annotation}
    return {m for argument in typing.get_args(annotation) for m in _models_within(argument)}
