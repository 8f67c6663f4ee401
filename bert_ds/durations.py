"""Durations as people write them."""

from __future__ import annotations

import re

_UNITS = (86_400, 3_600, 60, 1)


def seconds_of(text: str) -> float:
    """Seconds of `90m`, `3h50m`, `1d2h`, or a number of seconds.

    Raises:
        ValueError: it is none of these.
    """
    parts = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", text.strip())
    if not text.strip() or parts is None:
        raise ValueError(f"'{text}' is no time; write 90m, 3h50m or 3600")
    return float(sum(int(n or 0) * unit for n, unit in zip(parts.groups(), _UNITS, strict=True)))
