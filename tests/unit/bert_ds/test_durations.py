"""Durations as people write and read them."""

from __future__ import annotations

import pytest

from bert_ds.durations import duration, seconds_of


@pytest.mark.parametrize(
    ("seconds", "decimals", "text"),
    [
        (44.6, 1, "44.6 s"),
        (44.6, 0, "45 s"),
        (59.6, 0, "1 min 00 s"),
        (200, 1, "3 min 20 s"),
        (7500, 0, "2 h 05 min"),
        (97_200, 0, "1 d 03 h"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float, decimals: int, text: str) -> None:
    assert duration(seconds, decimals) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90m", 5400), ("3h50m", 13_800), ("3600", 3600), ("1d2h3m4s", 93_784), (" 12s ", 12)],
)
def test_durations_are_read_as_people_write_them(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5 hours", "-3", "1.5h", "h"])
def test_other_texts_are_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration; write 90m, 3h50m or 3600"):
        seconds_of(text)
