"""Formats numbers, durations and text of a run folder for people; `None` (unknown) is a dash."""

from __future__ import annotations

import math

from bert_ds import durations

UNKNOWN = "-"


def count(value: float | None) -> str:
    """Format a whole number with thousands separators: 12,345."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:,.0f}"


def large(value: float | None) -> str:
    """Format a count where room is short: 76,800, 17.7 million, 2.49 trillion."""
    for unit, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value is not None and math.isfinite(value) and value >= 10 * unit:
            return f"{number(value / unit)} {name}"
    return count(value)


def number(value: float | None, digits: int = 3) -> str:
    """Format a quantity to `digits` significant digits: 6.13, 1,234, 0.0213.

    Below 0.01 and from a million on it has an exponent and one digit less: 6.0e-3.
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    # The exponent is that of the rounded value: 9.999 to three digits is 10.0, not 10.00.
    exponent = int(f"{value:.{digits - 1}e}".split("e")[1])
    if -2 <= exponent < 6:
        return f"{value:,.{max(0, digits - 1 - exponent)}f}"
    mantissa, power = f"{value:.{digits - 2}e}".split("e")
    return f"{mantissa}e{int(power)}"


def tick(value: float) -> str:
    """Format a number at an axis, which is round already, without cutting digits: 40, 1.25e-3."""
    if value == 0 or 0.01 <= abs(value) < 1e9:
        return f"{value:,.10g}"
    mantissa, exponent = f"{value:.6e}".split("e")
    return f"{float(mantissa)}e{int(exponent)}"


def percent(fraction: float | None) -> str:
    """Format a fraction of 1 as a percentage: 45.1%."""
    return UNKNOWN if fraction is None or not math.isfinite(fraction) else f"{100 * fraction:.1f}%"


def duration(seconds: float | None) -> str:
    """Format a time in its two largest units: 41.3 s, 3 min 20 s, 2 h 05 min, 1 d 03 h."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    return durations.duration(seconds)


def plain(text: object, limit: int = 200) -> str:
    """Return text from a run folder on one line, without control characters, cut at `limit`."""
    line = "".join(c if c.isprintable() else "?" for c in str(text)[: limit + 1])
    return line if len(line) <= limit else line[: limit - 3] + "..."
