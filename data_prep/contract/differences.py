"""How two records of the same kind differ, in words: what was asked for before, and what now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data_prep.contract.manifest import InputSummary

_NAMED = 5
"""Inputs that are named one by one."""


def differences(saved: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return what differs between two identities, in words.

    Args:
        saved: what was asked for before.
        new: what is asked for now.
        prefix: goes before each name.
    """
    found = []
    for key in sorted({*saved, *new}):
        saved_value, new_value = saved.get(key), new.get(key)
        if saved_value == new_value:
            continue
        if key == "inputs":
            found += _input_difference(saved_value, new_value)
        elif isinstance(saved_value, Mapping) and isinstance(new_value, Mapping):
            found += differences(saved_value, new_value, f"{key} ")
        else:
            found.append(f"{prefix}{key}: {saved_value} there, {new_value} now")
    return found


def _input_difference(old: Any, new: Any) -> list[str]:
    """Return how two summaries of inputs differ, in words; nothing where only names do."""
    try:
        before, after = InputSummary.from_json(old), InputSummary.from_json(new)
    except (KeyError, TypeError):
        return ["inputs: recorded by another version"]
    if before.identity() == after.identity():
        return []
    if before.files != after.files:
        return [
            f"inputs: {before.files} files there, {after.files} now{_first_other(before, after)}"
        ]
    changed = [
        f"the {'weight' if entry.sha256 == other.sha256 else 'content'} of {other.path}"
        for entry, other in zip(before.given, after.given, strict=False)
        if (entry.sha256, entry.weight) != (other.sha256, other.weight)
    ]
    is_one_to_one = len(before.given) == len(after.given) and changed
    return [f"inputs: {', '.join(changed[:_NAMED]) if is_one_to_one else 'other content'}"]


def _first_other(before: InputSummary, after: InputSummary) -> str:
    """Return the first of the paths given that holds another number of files, in words."""
    if len(before.given) == len(after.given) > 1:
        for old, new in zip(before.given, after.given, strict=True):
            if old.files != new.files:
                return f" (in {new.path} {old.files} there, {new.files} now)"
    return ""
