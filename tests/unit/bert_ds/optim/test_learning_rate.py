"""The schedules by hand-worked numbers, and their limits by properties."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from bert_ds.config.schedule import ScheduleConfig
from bert_ds.optim import learning_rate_at

ADAPTER: TypeAdapter[ScheduleConfig] = TypeAdapter(ScheduleConfig)


def schedule(kind: str, **fields: Any) -> ScheduleConfig:
    return ADAPTER.validate_python({"kind": kind, **fields})


def test_nvidias_phase_1_has_the_jump_of_poly_warm_up() -> None:
    nvidia = schedule("nvidia_polynomial", warmup_proportion=0.2843, power=0.5)

    def rate(global_step: int) -> float:
        return learning_rate_at(nvidia, 6e-3, global_step, 7038)

    assert rate(0) == pytest.approx(6e-3 / 7038 / 0.2843)  # the first update has p = 1 / 7038
    assert rate(0) == pytest.approx(2.9986e-6, rel=1e-4)
    # p < 0.2843 up to the 2000th update: 0.2843 x 7038 = 2000.9.
    assert rate(1999) == pytest.approx(6e-3 * (2000 / 7038) / 0.2843)
    assert rate(1999) == pytest.approx(5.9973e-3, rel=1e-5)
    assert rate(2000) == pytest.approx(6e-3 * math.sqrt(5037 / 7038))
    assert rate(2000) == pytest.approx(5.0759e-3, rel=1e-5)
    assert rate(7037) == 0.0


def test_polynomial_decays_from_the_peak() -> None:
    polynomial = schedule("polynomial", warmup_proportion=0.4, power=0.5)
    rates = [learning_rate_at(polynomial, 10.0, step, 10) for step in range(10)]
    decay = [10.0 * math.sqrt(left / 6) for left in (6, 5, 4, 3, 2, 1)]
    assert rates == pytest.approx([2.5, 5.0, 7.5, 10.0, *decay])


def test_linear_is_polynomial_of_power_1() -> None:
    linear = schedule("linear", warmup_proportion=0.2)
    rates = [learning_rate_at(linear, 4.0, step, 10) for step in range(10)]
    assert rates == pytest.approx([2.0, 4.0, 4.0, 3.5, 3.0, 2.5, 2.0, 1.5, 1.0, 0.5])


def test_constant_stays_after_the_warm_up() -> None:
    constant = schedule("constant", warmup_proportion=0.5)
    rates = [learning_rate_at(constant, 1.0, step, 4) for step in range(4)]
    assert rates == [0.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("kind", ["polynomial", "linear", "constant"])
def test_without_warm_up_the_first_update_has_the_peak(kind: str) -> None:
    assert learning_rate_at(schedule(kind), 3e-4, 0, 5) == 3e-4


def test_deepspeed_ee_of_bing_bert_phase_1() -> None:
    ee = schedule(
        "deepspeed_ee", warmup_proportion=0.06, decay_rate=0.9, decay_steps=250, offset=1e-3
    )

    def rate(global_step: int) -> float:
        return learning_rate_at(ee, 11e-3, global_step, 7500)

    assert rate(0) == 1e-3  # the offset alone
    assert rate(225) == pytest.approx(11e-3 / 4 + 1e-3)  # half way through the warm-up of 450
    assert rate(450) == pytest.approx(12e-3)
    assert rate(700) == pytest.approx(0.9 * 11e-3 + 1e-3)
    assert rate(950) == pytest.approx(0.81 * 11e-3 + 1e-3)


@given(
    kind=st.sampled_from(["polynomial", "linear", "constant"]),
    warmup_proportion=st.floats(0.0, 0.999),
    total_steps=st.integers(1, 300),
)
def test_ours_never_waste_an_update_nor_jump(
    kind: str, warmup_proportion: float, total_steps: int
) -> None:
    config = schedule(kind, warmup_proportion=warmup_proportion)
    rates = [learning_rate_at(config, 1.0, step, total_steps) for step in range(total_steps)]
    assert all(0.0 < rate <= 1.0 for rate in rates)
    assert max(rates) == 1.0
    peak = rates.index(1.0)
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    # The update after the warm-up has the peak too: the decay starts from it.
    warmup_steps = min(round(warmup_proportion * total_steps), total_steps - 1)
    assert rates[warmup_steps] == 1.0


@pytest.mark.parametrize("global_step", [-1, 10, 11])
def test_updates_outside_the_phase_have_no_learning_rate(global_step: int) -> None:
    with pytest.raises(ValueError, match=f"updates 0 to 9, there is no update {global_step}"):
        learning_rate_at(schedule("constant"), 1.0, global_step, 10)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "cosine"},
        {"kind": "linear", "power": 0.5},
        {"kind": "constant", "decay_rate": 0.9},
        {"kind": "polynomial", "offset": 0.1},
        {"kind": "polynomial", "warmup_proportion": 1.0},
        {"kind": "polynomial", "warmup_proportion": -0.1},
        {"kind": "polynomial", "power": 0.0},
        {"kind": "deepspeed_ee", "warmup_proportion": 0.0, "decay_steps": 250},
        {"kind": "deepspeed_ee", "warmup_proportion": 0.1},
        {"kind": "deepspeed_ee", "warmup_proportion": 0.1, "decay_steps": 0},
    ],
)
def test_what_a_kind_does_not_use_or_allow_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(fields)
