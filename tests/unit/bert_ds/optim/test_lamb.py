"""The reference LAMB against the formulae in plain Python floats."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import pytest
import torch

from bert_ds.errors import ConfigError
from bert_ds.optim import Lamb

BETA1, BETA2 = 0.9, 0.999

START = {"dense.weight": [0.5, -1.25, 2.0, 0.75], "dense.bias": [0.3, -0.4]}
GRADIENTS = [
    {"dense.weight": [0.1, 0.02, -0.3, 0.07], "dense.bias": [-0.2, 0.05]},
    {"dense.weight": [-0.4, 0.06, -0.1, 0.01], "dense.bias": [0.3, 0.15]},
]
DECAY = {"dense.weight": 0.01, "dense.bias": 0.0}


def norm(values: list[float]) -> float:
    return math.sqrt(math.fsum(value * value for value in values))


def lamb_in_plain_python(
    lr: float = 0.02,
    eps: float = 1e-6,
    bias_correction: bool = True,
    use_nvlamb: bool = False,
    grad_averaging: bool = True,
    trust_ratio_bounds: tuple[float, float] | None = None,
    max_grad_norm: float = 0.0,
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Two updates from START; the weights, and the trust ratios of the second update."""
    weights = copy.deepcopy(START)
    m = {name: [0.0] * len(values) for name, values in START.items()}
    v = {name: [0.0] * len(values) for name, values in START.items()}
    ratios = {}
    for t, gradients in enumerate(GRADIENTS, start=1):
        global_norm = norm([g for values in gradients.values() for g in values])
        divisor = max(1.0, global_norm / max_grad_norm) if max_grad_norm else 1.0
        for name, w in weights.items():
            update = []
            for i, gradient in enumerate(gradients[name]):
                g = gradient / divisor
                m[name][i] = BETA1 * m[name][i] + ((1 - BETA1) if grad_averaging else 1.0) * g
                v[name][i] = BETA2 * v[name][i] + (1 - BETA2) * g * g
                m_hat = m[name][i] / (1 - BETA1**t) if bias_correction else m[name][i]
                v_hat = v[name][i] / (1 - BETA2**t) if bias_correction else v[name][i]
                update.append(m_hat / (math.sqrt(v_hat) + eps) + DECAY[name] * w[i])
            ratio = 1.0
            if DECAY[name] or use_nvlamb:
                ratio = norm(w) / norm(update)
                if trust_ratio_bounds:
                    ratio = min(max(ratio, trust_ratio_bounds[0]), trust_ratio_bounds[1])
            ratios[name] = ratio
            weights[name] = [w_i - lr * ratio * u_i for w_i, u_i in zip(w, update, strict=True)]
    return weights, ratios


def parameters(dtype: torch.dtype = torch.float64) -> dict[str, torch.nn.Parameter]:
    return {n: torch.nn.Parameter(torch.tensor(v, dtype=dtype)) for n, v in START.items()}


def groups(named: dict[str, torch.nn.Parameter]) -> list[dict[str, Any]]:
    return [
        {"params": [parameter], "names": [name], "weight_decay": DECAY[name]}
        for name, parameter in named.items()
    ]


def take_steps(
    optimizer: Lamb, named: dict[str, torch.nn.Parameter], gradients: list[dict[str, list[float]]]
) -> None:
    for step_gradients in gradients:
        for name, parameter in named.items():
            parameter.grad = torch.tensor(step_gradients[name], dtype=parameter.dtype)
        optimizer.step()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"eps": 0.1},
        {"bias_correction": False},
        {"use_nvlamb": True},
        {"grad_averaging": False},
        {"use_nvlamb": True, "trust_ratio_bounds": (0.01, 0.3)},
        {"use_nvlamb": True, "trust_ratio_bounds": (2.5, math.inf)},
        {"max_grad_norm": 0.2},
        {"max_grad_norm": 0.45},
        {"max_grad_norm": 100.0},
    ],
    ids=str,
)
def test_two_updates_of_two_parameters_to_all_digits(options: dict[str, Any]) -> None:
    expected, expected_ratios = lamb_in_plain_python(**options)
    named = parameters()
    optimizer = Lamb(groups(named), lr=0.02, **options)
    take_steps(optimizer, named, GRADIENTS)
    for name, parameter in named.items():
        assert parameter.tolist() == pytest.approx(expected[name], rel=1e-14), name
    assert optimizer.last_trust_ratios() == pytest.approx(expected_ratios, rel=1e-14)


def test_options_differ_from_each_other() -> None:
    """Else the comparison above could pass with an option that is read by neither side."""
    outcomes = set()
    options: list[dict[str, Any]] = [
        {},
        {"eps": 0.1},
        {"bias_correction": False},
        {"use_nvlamb": True},
        {"grad_averaging": False},
        {"trust_ratio_bounds": (0.01, 0.3)},
        {"max_grad_norm": 0.2},
    ]
    for chosen in options:
        weights, _ = lamb_in_plain_python(**chosen)
        outcomes.add((*weights["dense.weight"], *weights["dense.bias"]))
    assert len(outcomes) == len(options)


def test_first_update_worked_by_hand() -> None:
    # m-hat = g and v-hat = g^2, so u = sign(g) = (1, -1); ||w|| = 5, ||u|| = sqrt(2).
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64))
    weight.grad = torch.tensor([0.7, -0.001], dtype=torch.float64)
    optimizer = Lamb([weight], lr=0.1, eps=0.0, weight_decay=0.0, use_nvlamb=True)
    optimizer.step()
    assert weight.tolist() == pytest.approx([3 - 0.5 / math.sqrt(2), 4 + 0.5 / math.sqrt(2)])
    assert optimizer.last_trust_ratios() == pytest.approx({"0.0": 5 / math.sqrt(2)})


def test_float32_parameters_follow_to_float32_rounding() -> None:
    expected, _ = lamb_in_plain_python()
    named = parameters(torch.float32)
    optimizer = Lamb(groups(named), lr=0.02)
    take_steps(optimizer, named, GRADIENTS)
    for name, parameter in named.items():
        assert parameter.tolist() == pytest.approx(expected[name], rel=1e-6), name
        assert optimizer.state[parameter]["exp_avg"].dtype == torch.float32


def test_a_zero_weight_has_ratio_1_and_moves() -> None:
    weight = torch.nn.Parameter(torch.zeros(3))
    weight.grad = torch.tensor([1.0, -2.0, 3.0])
    optimizer = Lamb([weight], lr=0.1, eps=0.0, trust_ratio_bounds=(0.01, 0.3))
    optimizer.step()
    assert optimizer.last_trust_ratios() == {"0.0": 1.0}
    assert weight.tolist() == pytest.approx([-0.1, 0.1, -0.1])


def test_a_zero_update_has_ratio_1_and_leaves_the_weight() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    weight.grad = torch.zeros(2)
    optimizer = Lamb([weight], lr=0.1, weight_decay=0.0, use_nvlamb=True)
    optimizer.step()
    assert optimizer.last_trust_ratios() == {"0.0": 1.0}
    assert weight.tolist() == [1.0, 2.0]


def test_parameters_without_decay_have_ratio_1_unless_use_nvlamb() -> None:
    for use_nvlamb in (False, True):
        named = parameters()
        optimizer = Lamb(groups(named), lr=0.02, use_nvlamb=use_nvlamb)
        take_steps(optimizer, named, GRADIENTS[:1])
        ratios = optimizer.last_trust_ratios()
        assert (ratios["dense.bias"] == 1.0) is not use_nvlamb
        assert ratios["dense.weight"] != 1.0


def test_step_counts_the_updates_of_each_tensor() -> None:
    named = parameters()
    optimizer = Lamb(groups(named), lr=0.02)
    take_steps(optimizer, named, GRADIENTS)
    named["dense.bias"].grad = None
    before = named["dense.bias"].tolist()
    optimizer.step()
    steps = {name: optimizer.state[parameter]["step"] for name, parameter in named.items()}
    assert steps == {"dense.weight": 3, "dense.bias": 2}
    assert named["dense.bias"].tolist() == before
    assert set(optimizer.last_trust_ratios()) == {"dense.weight"}


def test_saved_and_loaded_state_continues_bit_for_bit() -> None:
    gradients = GRADIENTS * 3
    named = parameters(torch.float32)
    take_steps(Lamb(groups(named), lr=0.02), named, gradients)

    first = parameters(torch.float32)
    optimizer = Lamb(groups(first), lr=0.02)
    take_steps(optimizer, first, gradients[:3])
    file = io.BytesIO()
    torch.save({"model": first, "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second = {name: torch.nn.Parameter(value.detach()) for name, value in saved["model"].items()}
    resumed = Lamb(groups(second), lr=1.0)
    resumed.load_state_dict(saved["optimizer"])
    assert resumed.last_trust_ratios() == {}
    take_steps(resumed, second, gradients[3:])
    for name, parameter in named.items():
        assert torch.equal(parameter, second[name]), name


def test_a_copy_keeps_clipping() -> None:
    named = parameters()
    optimizer = copy.deepcopy(Lamb(groups(named), lr=0.02, max_grad_norm=0.2))
    copied = dict(zip(named, (g["params"][0] for g in optimizer.param_groups), strict=True))
    take_steps(optimizer, copied, GRADIENTS)
    expected, _ = lamb_in_plain_python(max_grad_norm=0.2)
    assert copied["dense.weight"].tolist() == pytest.approx(expected["dense.weight"], rel=1e-14)


def test_grad_norm_is_the_one_before_clipping_over_all_groups() -> None:
    named = parameters()
    optimizer = Lamb(groups(named), lr=0.02, max_grad_norm=0.2)
    assert optimizer.last_grad_norm() is None
    take_steps(optimizer, named, GRADIENTS[:1])
    reported = optimizer.last_grad_norm()
    assert reported is not None
    assert reported.item() == pytest.approx(norm([0.1, 0.02, 0.3, 0.07, 0.2, 0.05]), rel=1e-14)


@pytest.mark.parametrize("max_grad_norm", [0.0, 1.0])
def test_a_nan_gradient_spreads_to_its_weights_and_ratio(max_grad_norm: float) -> None:
    named = parameters()
    optimizer = Lamb(groups(named), lr=0.02, max_grad_norm=max_grad_norm)
    gradients = {**GRADIENTS[0], "dense.weight": [0.1, math.nan, 0.2, 0.3]}
    take_steps(optimizer, named, [gradients])
    assert named["dense.weight"].isnan().all()
    assert math.isnan(optimizer.last_trust_ratios()["dense.weight"])
    # Through the global norm it reaches every tensor.
    assert named["dense.bias"].isnan().all().item() is (max_grad_norm > 0)


def test_the_ratio_of_a_large_tensor_is_right() -> None:
    # All elements alike: ||w|| / ||u|| is |w| / |u| whatever the size. Norms summed in float32
    # are about 1e-3 off at this size, by amounts that do not cancel.
    weight = torch.nn.Parameter(torch.full((8_000_000,), 0.0123))
    weight.grad = torch.full_like(weight, 1e-3)
    optimizer = Lamb([weight], lr=0.1, eps=0.0, weight_decay=0.01)
    optimizer.step()
    expected = 0.0123 / (1.0 + 0.01 * 0.0123)
    assert optimizer.last_trust_ratios()["0.0"] == pytest.approx(expected, rel=1e-6)


def test_a_step_reads_nothing_from_the_device() -> None:
    """On the meta device, which has no values, any read (`item`, `if tensor`) is an error."""
    named = {name: torch.nn.Parameter(value.to("meta")) for name, value in parameters().items()}
    optimizer = Lamb(
        groups(named), lr=0.02, max_grad_norm=1.0, trust_ratio_bounds=(0.01, 0.3), use_nvlamb=True
    )
    for _ in range(2):
        for parameter in named.values():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    with pytest.raises(RuntimeError, match="meta"):
        optimizer.last_trust_ratios()


def test_a_closure_is_called_with_gradients_on() -> None:
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = Lamb([weight], lr=0.1)

    def closure() -> float:
        loss = (weight**2).sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 4.0
    assert weight.item() < 2.0


def test_groups_flattened_by_an_engine_are_refused() -> None:
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = Lamb([{"params": weights, "names": ["a", "b", "c"]}], lr=0.1)
    flat = torch.nn.Parameter(torch.ones(6))
    flat.grad = torch.ones(6)
    optimizer.param_groups[0]["params"] = [flat]
    with pytest.raises(ConfigError, match="3 named parameters and now holds 1 tensors"):
        optimizer.step()
    assert flat.tolist() == [1.0] * 6


def test_half_precision_parameters_are_refused() -> None:
    weight = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    weight.grad = torch.ones_like(weight)
    with pytest.raises(ConfigError, match=r"needs float32 parameters, and 0\.0 is torch\.bfloat16"):
        Lamb([weight], lr=0.1).step()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "LAMB's lr must be finite and at least 0, not -1.0"),
        ({"lr": math.nan}, "LAMB's lr"),
        ({"betas": (0.9, 1.0)}, r"LAMB's betas must be two in \[0, 1\)"),
        ({"eps": -1e-6}, "LAMB's eps"),
        ({"weight_decay": -0.1}, "LAMB's weight_decay"),
        ({"trust_ratio_bounds": (0.3, 0.01)}, "0 <= lowest <= highest"),
        ({"max_grad_norm": -1.0}, "LAMB's max_grad_norm"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Lamb([torch.nn.Parameter(torch.ones(1))], **{"lr": 0.1, **options})
