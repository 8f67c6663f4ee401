"""Load a recipe folder and `--set` overrides as a validated `RunConfig`.

Precedence: defaults < recipe < `--set a.b=c`. All checks happen here, before torch.distributed
starts, so that a wrong key costs a second and not an allocation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bert_ds.config.messages import describe_validation_error
from bert_ds.config.recipe import RunConfig
from bert_ds.errors import ConfigError
from bert_ds.files import read_json_object

_SHIPPED = Path(__file__).resolve().parents[2] / "ds_configs"
"""The shipped recipes; they lie next to the package in a clone and in an installation alike."""


def load_run_config(recipe: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a recipe folder, apply overrides, and validate the result.

    Args:
        recipe: folder that holds `recipe.json` and the DeepSpeed JSONs that it names, or the name
            of a shipped one.
        overrides: `path=value` each; the value is JSON, or a plain string where it is not. A path
            that begins with `deepspeed.` applies to every phase, `phases.1.deepspeed.` to one.

    Raises:
        ConfigError: a file is missing or not JSON, a key is unknown, a value is out of range.
    """
    tree = _read_recipe(find_recipe(recipe))
    for override in overrides:
        _apply_override(tree, override)
    return validate_run_config(tree, where=str(recipe))


def find_recipe(recipe: Path) -> Path:
    """Return a recipe's folder: the one at that path or, where there is none, the shipped one.

    Raises:
        ConfigError: there is no such folder, and no shipped recipe of that name.
    """
    if recipe.is_dir():
        return recipe
    shipped = {path.parent.name: path.parent for path in _SHIPPED.glob("*/recipe.json")}
    if str(recipe) in shipped:
        return shipped[str(recipe)]
    raise ConfigError(
        f"no recipe folder at {recipe.absolute()}, and no shipped recipe of that name; give a "
        f"folder with a recipe.json, or one of {', '.join(sorted(shipped))}"
    )


def validate_run_config(tree: dict[str, Any], where: str) -> RunConfig:
    """Build a `RunConfig` from plain JSON values; errors name `where`, the key and its rule."""
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as err:
        raise ConfigError(f"{where}: " + describe_validation_error(err, RunConfig)) from err


def _read_recipe(recipe: Path) -> dict[str, Any]:
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
