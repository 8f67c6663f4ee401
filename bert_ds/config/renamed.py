"""Settings that had another name in earlier versions.

A recipe or `--set` with a former name is refused, with the present one. The folder of a run that an
earlier version began is read as it is.
"""

from __future__ import annotations

from typing import Any

RENAMED_SETTINGS = {"meeting_s": "rendezvous_timeout_s"}
"""Present names by former ones, of the settings at the top of a recipe."""


def with_present_names(tree: dict[str, Any]) -> dict[str, Any]:
    """Return recorded settings under the names of this version."""
    return {RENAMED_SETTINGS.get(key, key): value for key, value in tree.items()}
