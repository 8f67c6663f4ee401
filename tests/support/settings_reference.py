"""The reference of all settings in docs/recipes.md, generated from the settings' own docstrings.

    python -m tests.support.settings_reference --write

A test holds that the page is current.
"""

from __future__ import annotations

import argparse
import json
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bert_ds.config.deepspeed import KNOWN_KEYS, REFUSED_KEYS, DeepSpeedConfig
from bert_ds.config.recipe import RunConfig

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
BEGIN, END = "<!-- settings: begin -->\n", "<!-- settings: end -->\n"
SIGNS = {"gt": "> {}", "ge": ">= {}", "lt": "< {}", "le": "<= {}"}
HEAD = ("| setting | default | values | meaning |", "|---|---|---|---|")
COLUMNS = 100


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write docs/recipes.md")
    page = current_page(PAGE.read_text(encoding="utf-8"))
    if parser.parse_args().write:
        PAGE.write_text(page, encoding="utf-8")
    else:
        print(page, end="")


def current_page(page: str) -> str:
    """Return a page with the reference between its two marks generated again."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + "\n".join(reference()) + "\n\n" + END + after


def reference() -> Iterator[str]:
    """Yield the lines of the reference: a table a section of the settings."""
    yield "### recipe.json"
    yield from table(RunConfig, "")
    for name, field in RunConfig.model_fields.items():
        for model in models_within(field.annotation):
            path = f"{name}.N" if name == "phases" else name
            yield from section(model, f"{path}.", f"`{path}`")
    schedules = RunConfig.model_fields["phases"].annotation
    (phase,) = models_within(schedules)
    for model in models_within(phase.model_fields["schedule"].annotation):
        kind = typing.get_args(model.model_fields["kind"].annotation)[0]
        yield from section(model, "phases.N.schedule.", f"`phases.N.schedule`, kind `{kind}`")
    for model in models_within(DeepSpeedConfig.model_fields["optimizer"].annotation):
        yield from section(model, "optimizer.params.", "DeepSpeed JSON: `optimizer.params`")
    yield from ("", "### DeepSpeed JSON: keys that are passed on", "")
    yield from wrapped(", ".join(f"`{key}`" for key in sorted(KNOWN_KEYS)) + ".")
    yield from ("", "### DeepSpeed JSON: keys that are refused", "", "| key | why |", "|---|---|")
    yield from (f"| `{key}` | {why} |" for key, why in sorted(REFUSED_KEYS.items()))


def wrapped(text: str) -> Iterator[str]:
    """Yield the words of a text in lines of at most COLUMNS."""
    line = ""
    for word in text.split(" "):
        if len(line) + 1 + len(word) > COLUMNS:
            yield line
            line = word
        else:
            line = f"{line} {word}".lstrip()
    yield line


def section(model: type[BaseModel], prefix: str, title: str) -> Iterator[str]:
    """Yield a heading, the model's docstring and its table."""
    yield from ("", f"### {title}", "")
    yield from wrapped(one_line(model.__doc__ or ""))
    yield from table(model, prefix)


def table(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yield a row a field; fields that are models themselves have a table of their own."""
    yield from ("", *HEAD)
    for name, field in model.model_fields.items():
        if models_within(field.annotation) and name != "deepspeed":
            continue
        meaning = one_line(field.description or "")
        assert meaning, f"{prefix}{name} has no docstring"
        yield f"| `{prefix}{name}` | {default_of(field)} | {values_of(field)} | {meaning} |"


def default_of(field: FieldInfo) -> str:
    """Return a field's default as JSON, or that it has none."""
    if field.is_required():
        return "must be given"
    return f"`{json.dumps(field.default)}`"


def values_of(field: FieldInfo) -> str:
    """Return a field's type and range in words."""
    limits = [
        sign.format(f"{getattr(limit, key):g}")
        for limit in field.metadata
        for key, sign in SIGNS.items()
        if getattr(limit, key, None) is not None
    ]
    return ", ".join([type_text(field.annotation), *limits])


def type_text(annotation: Any) -> str:
    """Return a type in the words of JSON."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_text(arguments[0])
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_text(argument) for argument in arguments)
    if origin is tuple:
        return "list of " + type_text(arguments[0])
    names = {int: "integer", float: "number", bool: "true or false", str: "text", Path: "path"}
    if annotation is type(None):
        return "null"
    return names.get(annotation, "object or file name")


def models_within(annotation: Any) -> list[type[BaseModel]]:
    """Return the models that a type names, in order."""
    if isinstance(annotation, type) and not typing.get_origin(annotation):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [m for argument in typing.get_args(annotation) for m in models_within(argument)]


def one_line(text: str) -> str:
    """Return a docstring on one line, safe within a table."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    main()
