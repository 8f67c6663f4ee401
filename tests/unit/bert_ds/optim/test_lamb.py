"""The reference LAMB against the formulae in plain Python floats."""

from __future__ import annotations

import copy
import doctest
import io
import math
from typing import Any

import pytest
import torch

from bert_ds.errors import ConfigError
from bert_ds.optim import Lamb, lamb

BETA1, BETA2 = 0.9, 0.999

START = {"dense.weight": [0.5, -1.25, 2.0, 0.75], "dense.bias": [0.3, -0.4]}
GRADIENTS = [
    {"dense.weight": [0.1, 0.02, -0.3, 0.07], "dense.bias": [-0.2, 0.05]},
    {"dense.weight": [-0.4, 0.06, -0.1, 0.01], "dense.bias": [0.3, 0.15]},
]
DECAY = {"dense.weight": 0.01, "dense.bias": 0.0}

# After both updates with lr 0.02 and all else at its default: weights, and the last trust ratio of
# dense.weight. Worked out by the formulae in decimal arithmetic of 50 digits.
WORKED_WEIGHT = [
    0.49252775045911523,
    -1.30446747217165072,
    2.05251697076665966,
    0.69922214673232591,
]
WORKED_BIAS = [0.31504588310720063, -0.43835505824423824]
WORKED_RATIO = 1.62492719295160691


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
    variant: str = "apex",
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Two updates from START; the weights, and the trust ratios of the second update."""
    weights = copy.deepcopy(START)
    m = {name: [0.0] * len(values) for name, values in START.items()}
    v = {name: [0.0] * len(values) for name, values in START.items()}
    ratios = {}
    is_deepspeed = variant == "deepspeed"
    for t, gradients in enumerate(GRADIENTS, start=1):
        global_norm = norm([g for values in gradients.values() for g in values])
        divisor = max(1.0, global_norm / max_grad_norm) if max_grad_norm else 1.0
        for name, w in weights.items():
            update = []
            for i, gradient in enumerate(gradients[name]):
                g = gradient / divisor
                m[name][i] = BETA1 * m[name][i] + ((1 - BETA1) if grad_averaging else 1.0) * g
                v[name][i] = BETA2 * v[name][i] + (1 - BETA2) * g * g
                is_corrected = bias_correction and not is_deepspeed
                m_hat = m[name][i] / (1 - BETA1**t) if is_corrected else m[name][i]
                v_hat = v[name][i] / (1 - BETA2**t) if is_corrected else v[name][i]
                update.append(m_hat / (math.sqrt(v_hat) + eps) + DECAY[name] * w[i])
            ratio = 1.0
            if DECAY[name] or use_nvlamb or is_deepspeed:
                ratio = norm(w) / norm(update)
                if trust_ratio_bounds:
                    ratio = min(max(ratio, trust_ratio_bounds[0]), trust_ratio_bounds[1])
            ratios[name] = ratio
            factor = 1.0
            if is_deepspeed and bias_correction:
                factor = math.sqrt(1 - BETA2**t) / (1 - BETA1**t)
            weights[name] = [
                w_i - lr * factor * ratio * u_i for w_i, u_i in zip(w, update, strict=True)
            ]
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
        {"variant": "deepspeed"},
        {"variant": "deepspeed", "bias_correction": False},
        {"variant": "deepspeed", "trust_ratio_bounds": (0.01, 0.3)},
        {"variant": "deepspeed", "trust_ratio_bounds": (2.5, 10.0), "max_grad_norm": 0.2},
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

    in_float32 = parameters(torch.float32)  # by the fastest kernel of this machine
    optimizer = Lamb(groups(in_float32), lr=0.02, **options)
    take_steps(optimizer, in_float32, GRADIENTS)
    for name, parameter in in_float32.items():
        assert parameter.tolist() == pytest.approx(expected[name], rel=2e-6), name
    assert optimizer.last_trust_ratios() == pytest.approx(expected_ratios, rel=2e-6)


def test_two_updates_worked_out_with_all_digits() -> None:
    named = parameters()
    optimizer = Lamb(groups(named), lr=0.02)
    take_steps(optimizer, named, GRADIENTS)
    assert named["dense.weight"].tolist() == pytest.approx(WORKED_WEIGHT, rel=1e-14)
    assert named["dense.bias"].tolist() == pytest.approx(WORKED_BIAS, rel=1e-14)
    assert optimizer.last_trust_ratios()["dense.weight"] == pytest.approx(WORKED_RATIO, rel=1e-14)


def test_the_example_in_the_docstring_runs() -> None:
    failed, attempted = doctest.testmod(lamb)
    assert (failed, attempted > 4) == (0, True)


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
        {"variant": "deepspeed"},
        {"variant": "deepspeed", "bias_correction": False},
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
    assert set(optimizer.last_trust_ratios()) == {"dense.weight", "dense.bias"}


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
    with pytest.raises(ConfigError, match=r"shape \(6,\) that is not in its layout"):
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
        ({"betas": (0.9, 1.0)}, r"LAMB's betas must be two, each at least 0 and below 1"),
        ({"eps": -1e-6}, "LAMB's eps"),
        ({"weight_decay": -0.1}, "LAMB's weight_decay"),
        ({"trust_ratio_bounds": (0.3, 0.01)}, "0 <= lowest <= highest > 0"),
        ({"trust_ratio_bounds": (0.0, 0.0)}, "highest > 0"),
        ({"max_grad_norm": -1.0}, "LAMB's max_grad_norm"),
        ({"variant": "nvidia"}, "variant must be one of apex, deepspeed, not 'nvidia'"),
        ({"kernel": "cuda"}, "kernel must be one of auto, plain, cpu, triton, apex, not 'cuda'"),
        ({"variant": "deepspeed", "use_nvlamb": True}, "has neither use_nvlamb"),
        ({"variant": "deepspeed", "grad_averaging": False}, "nor grad_averaging=False"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Lamb([torch.nn.Parameter(torch.ones(1))], **{"lr": 0.1, **options})


def test_sparse_gradients_are_refused() -> None:
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    embedding(torch.tensor([1, 3])).sum().backward()
    with pytest.raises(ConfigError, match=r"dense gradients, .* shape \(5, 2\)"):
        Lamb(embedding.parameters(), lr=0.1).step()


@pytest.mark.parametrize("kernel", ["plain", "cpu"])
def test_the_order_of_elements_in_memory_does_not_matter(kernel: str) -> None:
    values = torch.arange(1.0, 13.0).reshape(3, 4)
    gradient = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)
    straight = torch.nn.Parameter(values.clone())
    turned = torch.nn.Parameter(values.t().contiguous().t())
    assert not turned.is_contiguous()
    for weight in (straight, turned):
        optimizer = Lamb([weight], lr=0.1, kernel=kernel)
        for _ in range(2):
            weight.grad = gradient.clone()
            optimizer.step()
    assert torch.allclose(straight, turned, rtol=1e-6)
    assert not torch.equal(straight, values)


def test_a_tensor_whose_elements_overlap_is_refused() -> None:
    weight = torch.nn.Parameter(torch.ones(1).expand(4))
    weight.grad = torch.ones(4)
    with pytest.raises(ConfigError, match="its elements overlap or have gaps"):
        Lamb([weight], lr=0.1).step()


@pytest.mark.parametrize("kernel", ["plain", "cpu"])
def test_a_parameter_without_elements_is_left_as_it_is(kernel: str) -> None:
    empty, weight = torch.nn.Parameter(torch.ones(0, 3)), torch.nn.Parameter(torch.ones(2))
    optimizer = Lamb([empty, weight], lr=0.1, kernel=kernel)
    empty.grad, weight.grad = torch.ones(0, 3), torch.ones(2)
    optimizer.step()
    assert optimizer.last_trust_ratios()["0.0"] == 1.0
    assert weight.tolist() != [1.0, 1.0]


def test_gradients_of_whole_parameters_are_left_as_they_are() -> None:
    weight = torch.nn.Parameter(torch.linspace(-1.0, 1.0, 300_000))
    weight.grad = torch.linspace(0.0, 1.0, 300_000)
    before = weight.grad.clone()
    Lamb([weight], lr=0.1, max_grad_norm=1.0).step()
    assert torch.equal(weight.grad, before)


def test_norms_of_the_last_step_by_parameter() -> None:
    named = parameters()
    optimizer = Lamb(groups(named), lr=0.02)
    assert optimizer.last_norms() is None
    take_steps(optimizer, named, GRADIENTS[:1])
    norms = optimizer.last_norms()
    assert norms is not None
    assert norms.names == ("dense.weight", "dense.bias")
    expected = [norm(START["dense.weight"]), norm(START["dense.bias"])]
    assert norms.weight_norms.tolist() == pytest.approx(expected, rel=1e-14)
    expected = [norm(GRADIENTS[0]["dense.weight"]), norm(GRADIENTS[0]["dense.bias"])]
    assert norms.grad_norms.tolist() == pytest.approx(expected, rel=1e-14)
    # m-hat = g and v-hat = g^2 at the first update: u = sign(g) without decay
    assert norms.update_norms[1].item() == pytest.approx(math.sqrt(2.0), rel=1e-4)
    assert norms.trust_ratios.tolist() == list(optimizer.last_trust_ratios().values())


@pytest.mark.parametrize("kernel", ["plain", "cpu"])
def test_a_parameter_keeps_its_number_when_others_have_no_gradient(kernel: str) -> None:
    def train(present: list[tuple[int, ...]], kernel: str) -> tuple[list[float], dict[str, float]]:
        weights = [torch.nn.Parameter(torch.full((5,), 0.1 * (k + 1))) for k in range(3)]
        groups = [{"params": [w], "lr": 0.01 * (k + 1)} for k, w in enumerate(weights)]
        optimizer = Lamb(groups, lr=0.1, kernel=kernel)
        for having in present:
            for k, weight in enumerate(weights):
                weight.grad = torch.linspace(0.1, 1.0 + k, 5) if k in having else None
            optimizer.step()
        return [v for w in weights for v in w.tolist()], optimizer.last_trust_ratios()

    alone, _ = train([(0,), (0,)], "plain")
    weights, ratios = train([(0, 2), (0, 1, 2), (1, 2)], kernel)
    assert weights[:5] == pytest.approx(alone[:5], rel=1e-6)
    assert set(ratios) == {"0.0", "1.0", "2.0"}
    assert min(ratios.values()) > 0.05


def test_moments_follow_a_weight_that_is_laid_out_again() -> None:
    def train(*, is_turned: bool) -> torch.Tensor:
        weight = torch.nn.Parameter(torch.arange(1.0, 13.0).reshape(3, 4))
        optimizer = Lamb([weight], lr=0.1)
        for step in range(3):
            if is_turned and step == 1:
                weight.data = weight.data.t().contiguous().t()
            weight.grad = torch.linspace(-1.0, 1.0, 12).reshape(3, 4) ** (step + 1)
            optimizer.step()
        return weight.detach().contiguous()

    assert torch.allclose(train(is_turned=True), train(is_turned=False), rtol=1e-5)


def test_values_of_a_group_are_checked_and_shared_ones_are_one() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(ConfigError, match="variant must be one of"):
        Lamb([{"params": [weight], "variant": "deepsped"}], lr=0.1)
    with pytest.raises(ConfigError, match="LAMB's lr"):
        Lamb([{"params": [weight], "lr": -1.0}], lr=0.1)
    with pytest.raises(ConfigError, match="max_grad_norm is one for all groups"):
        Lamb([{"params": [weight], "max_grad_norm": 5.0}], lr=0.1)


def test_a_refused_gradient_leaves_every_step_count() -> None:
    weight, embedding = torch.nn.Parameter(torch.ones(2)), torch.nn.Embedding(5, 2, sparse=True)
    optimizer = Lamb([weight, embedding.weight], lr=0.1, max_grad_norm=1.0)
    weight.grad = torch.ones(2)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(ConfigError, match="dense gradients"):
        optimizer.step()
    assert optimizer.state[weight]["step"] == 0
    assert weight.tolist() == [1.0, 1.0]


def test_a_shard_in_place_of_a_single_parameter_is_refused() -> None:
    optimizer = Lamb([{"params": [torch.nn.Parameter(torch.ones(4))], "names": ["a"]}], lr=0.1)
    shard = torch.nn.Parameter(torch.ones(2))
    shard.grad = torch.ones(2)
    optimizer.param_groups[0]["params"] = [shard]
    with pytest.raises(ConfigError, match="not in its layout"):
        optimizer.step()
