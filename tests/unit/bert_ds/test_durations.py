"""Durations as people read them."""

from __future__ import annotations

import pytest

from bert_ds.durations import duration


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
