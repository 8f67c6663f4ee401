"""Thinning keeps means and ends; numbers read as people write them."""

import numpy as np
import pytest

from bert_ds.report.curves import running_mean, thin
from bert_ds.report.formats import count, duration, large, number, percent, plain, tick


def test_thinning_by_hand_takes_bucket_means_and_keeps_both_ends() -> None:
    x = np.arange(8.0)
    curve = thin(x, 10 * x, 5)
    assert curve.x.tolist() == [0, 1.5, 3.5, 5.5, 7]
    assert curve.y.tolist() == [0, 15, 35, 55, 70]
    assert curve.counts.tolist() == [1, 2, 2, 2, 1]


@pytest.mark.parametrize("size", [2001, 2003, 3999, 100_000])
def test_thinning_keeps_the_mean_the_ends_and_the_order(size: int) -> None:
    rng = np.random.default_rng(size)
    x, y = np.cumsum(rng.random(size)), rng.normal(size=size)
    curve = thin(x, y, 2000)
    assert len(curve.x) == 2000
    assert curve.counts.sum() == size
    inner = curve.counts[1:-1]
    assert inner.min() >= 1 and inner.max() - inner.min() <= 1
    assert (curve.y[0], curve.y[-1]) == (y[0], y[-1])
    assert (curve.x[0], curve.x[-1]) == (x[0], x[-1])
    assert bool((np.diff(curve.x) > 0).all())
    # Sums of 1e5 float64 of size one: rounding stays far below 1e-9.
    assert float((curve.y * curve.counts).sum()) == pytest.approx(float(y.sum()), abs=1e-9)


def test_a_short_curve_stays_as_it_is_without_its_missing_values() -> None:
    curve = thin(np.arange(4.0), np.array([1.0, np.nan, np.inf, 3.0]), 2000)
    assert curve.x.tolist() == [0, 3]
    assert curve.y.tolist() == [1, 3]


def test_running_mean_is_centred_and_takes_fewer_records_at_the_ends() -> None:
    assert running_mean(np.array([0.0, 3.0, 6.0, 12.0]), 3).tolist() == [1.5, 3, 7, 9]


@pytest.mark.parametrize(
    ("value", "spelled"),
    [(None, "-"), (0.0, "0"), (6e-3, "6.0e-3"), (1.27e-5, "1.3e-5"), (0.0213, "0.0213"),
     (6.1, "6.10"), (9.999, "10.0"), (367.2, "367"), (12345.0, "12,345"), (3.2e9, "3.2e9")],
)  # fmt: skip
def test_a_number_is_spelled_for_people(value: float | None, spelled: str) -> None:
    assert number(value) == spelled


def test_counts_shares_times_and_ticks_are_spelled_for_people() -> None:
    assert (count(12345.0), count(None), percent(0.4512)) == ("12,345", "-", "45.1%")
    assert (large(76_800), large(17.7e6), large(None)) == ("76,800", "17.7 million", "-")
    assert [duration(s) for s in (6.04, 59.96, 200.3, 7500, 3599.9, 97_200, None)] == [
        "6.0 s", "1 min 00 s", "3 min 20 s", "2 h 05 min", "1 h 00 min", "1 d 03 h", "-",
    ]  # fmt: skip
    assert [tick(v) for v in (0, 40.0, 0.45, 65536, 6e-3, 1.25e-3, 2.0**50)] == [
        "0", "40", "0.45", "65,536", "6.0e-3", "1.25e-3", "1.1259e15",
    ]  # fmt: skip


def test_foreign_text_loses_control_characters_and_excess_length() -> None:
    assert plain("a\x1b[31mb\nc\ud800") == "a?[31mb?c?"
    assert plain("x" * 30, 10) == "xxxxxxx..."
