"""Durations as people write them."""

from __future__ import annotations

import re

_UNITS = (86_400, 3_600, 60, 1)


def seconds_of(text: str) -> float:
    """Return the seconds of `90m`, `3h50m`, `1d2h`, or a number of seconds.

    Raises:
        ValueError: it is none of these.
    """
    parts = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", text.strip())
    if not text.strip() or parts is None:
        raise ValueError(f"'{text}' is no duration; write 90m, 3h50m or 3600")
    return float(sum(int(n or 0) * unit for n, unit in zip(parts.groups(), _UNITS, strict=True)))


def duration(seconds: float, decimals: int = 1) -> str:
    """Return a time in its two largest units: 41.3 s, 3 min 20 s, 2 h 05 min, 1 d 03 h.

    Args:
        seconds: the time.
        decimals: decimals of the seconds, for times below a minute.
    """
    if round(seconds, decimals) < 60:
        return f"{seconds:.{decimals}f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"
