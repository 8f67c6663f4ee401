"""Settings of earlier versions: those that have been renamed, and those that have been removed.

A recipe or `--set` that names one is refused with what to write instead. The folder of a run that
an earlier version began is read as it is.
"""

from __future__ import annotations

from typing import Any

RENAMED_SETTINGS = {"meeting_s": "rendezvous_timeout_s"}
"""Present names by former ones, of the settings at the top of a recipe."""

REMOVED_SETTINGS = {
    "data.reader_processes": "one thread reads and masks rows many times faster than a GPU trains "
    "on them; leave it out, and set data.cache_dir for slow file systems",
}
"""Why a setting is gone and what to do instead, by its path. None of them changed a result."""


def settings_of_today(tree: dict[str, Any]) -> dict[str, Any]:
    """Return recorded settings as this version knows them."""
    sections = {key: dict(value) for key, value in tree.items() if isinstance(value, dict)}
    for path in REMOVED_SETTINGS:
        section, _, name = path.partition(".")
        sections.get(section, {}).pop(name, None)
    current = {**tree, **sections}
    return {RENAMED_SETTINGS.get(key, key): value for key, value in current.items()}
