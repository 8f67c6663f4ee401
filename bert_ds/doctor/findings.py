"""Findings of the doctor, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    level: Level
    """`error` where a run fails or is wrong, `warning` where it is slower or may fail, or `ok`."""
    subject: str
    """What it is about, in a word or two."""
    message: str
    """What was found, with the values."""
    way_out: str = ""
    """What to do; empty where all is well."""


def as_text(findings: Sequence[Finding]) -> str:
    """Return one line per finding, with what to do below it; the worst come last."""
    order = {"ok": 0, "warning": 1, "error": 2}
    lines = []
    for finding in sorted(findings, key=lambda entry: order[entry.level]):
        lines.append(f"{finding.level:<8} {finding.subject}: {finding.message}")
        if finding.way_out:
            lines.append(f"{'':<8}   -> {finding.way_out}")
    counts = {level: sum(f.level == level for f in findings) for level in order}
    lines.append(f"{counts['error']} errors, {counts['warning']} warnings, {counts['ok']} ok")
    return "\n".join(lines)


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings as plain values for JSON."""
    return {
        "is_ready": not has_errors(findings),
        "findings": [asdict(finding) for finding in findings],
    }


def has_errors(findings: Sequence[Finding]) -> bool:
    """Return whether a run would fail or be wrong."""
    return any(finding.level == "error" for finding in findings)
