"""LAMB from the optimizer section of a DeepSpeed JSON."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from bert_ds.config.optimizer import lamb_config
from bert_ds.errors import ConfigError
from bert_ds.optim import Lamb


def section(**params: Any) -> dict[str, Any]:
    return {"type": "Lamb", "params": {"lr": 6e-3, **params}}


@pytest.mark.parametrize("optimizer_type", ["Lamb", "FusedLamb"])
def test_every_key_reaches_the_optimizer(optimizer_type: str) -> None:
    params = {
        "lr": 11e-3,
        "betas": [0.8, 0.98],
        "eps": 1e-5,
        "weight_decay": 0.02,
        "bias_correction": False,
        "max_coeff": 0.3,
        "min_coeff": 0.01,
        "use_nvlamb": True,
        "grad_averaging": False,
        "kernel": "plain",
    }
    weight = torch.nn.Parameter(torch.ones(1))
    config = lamb_config({"type": optimizer_type, "params": params})
    optimizer = Lamb([weight], **config.arguments, max_grad_norm=1.5)
    expected = {
        "lr": 11e-3,
        "betas": (0.8, 0.98),
        "eps": 1e-5,
        "weight_decay": 0.02,
        "bias_correction": False,
        "trust_ratio_bounds": (0.01, 0.3),
        "use_nvlamb": True,
        "grad_averaging": False,
        "max_grad_norm": 1.5,
        "variant": "apex",
        "kernel": "plain",
    }
    assert {key: optimizer.defaults[key] for key in expected} == expected


def test_defaults_are_those_of_apex() -> None:
    optimizer = Lamb([torch.nn.Parameter(torch.ones(1))], **lamb_config(section()).arguments)
    assert optimizer.defaults["eps"] == 1e-6
    assert optimizer.defaults["betas"] == (0.9, 0.999)
    assert optimizer.defaults["weight_decay"] == 0.01
    assert optimizer.defaults["bias_correction"] is True
    assert optimizer.defaults["trust_ratio_bounds"] is None
    assert optimizer.defaults["max_grad_norm"] == 0.0
    assert optimizer.defaults["variant"] == "apex"
    assert optimizer.defaults["kernel"] == "auto"


def test_the_variant_deepspeed_has_deepspeeds_defaults_and_reads_its_recipe() -> None:
    weight = [torch.nn.Parameter(torch.ones(1))]
    by_default = Lamb(weight, **lamb_config(section(variant="deepspeed")).arguments).defaults
    assert by_default["variant"] == "deepspeed"
    assert (by_default["eps"], by_default["weight_decay"]) == (1e-8, 0.0)
    assert by_default["trust_ratio_bounds"] == (0.01, 10.0)
    # DeepSpeedExamples, bing_bert: deepspeed_bsz64k_lamb_config_seq128.json
    bing_bert = section(
        variant="deepspeed", lr=11e-3, weight_decay=0.01, bias_correction=False, max_coeff=0.3,
        min_coeff=0.01,
    )  # fmt: skip
    as_published = Lamb(weight, **lamb_config(bing_bert).arguments).defaults
    assert as_published["trust_ratio_bounds"] == (0.01, 0.3)
    assert as_published["weight_decay"] == 0.01
    assert as_published["bias_correction"] is False


def test_the_groups_own_weight_decay_wins() -> None:
    group = {"params": [torch.nn.Parameter(torch.ones(1))], "weight_decay": 0.0}
    optimizer = Lamb([group], **lamb_config(section(weight_decay=0.01)).arguments)
    assert optimizer.param_groups[0]["weight_decay"] == 0.0


def test_one_bound_leaves_the_other_open() -> None:
    assert lamb_config(section(max_coeff=0.3)).trust_ratio_bounds == (0.0, 0.3)
    assert lamb_config(section(min_coeff=0.01)).trust_ratio_bounds == (0.01, math.inf)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"type": "Adam", "params": {"lr": 1e-3}}, "must be one of Lamb, FusedLamb, not 'Adam'"),
        ({"type": "FusedLam", "params": {"lr": 1e-3}}, "did you mean 'FusedLamb'"),
        ({"params": {"lr": 1e-3}}, "must be one of Lamb, FusedLamb, not None"),
        ({"type": "Lamb"}, "optimizer.params is missing"),
        ({"type": "Lamb", "params": {"lr": 1e-3}, "parms": {}}, "did you mean 'params'"),
        (section(weight_dcay=0.1), "unknown key 'weight_dcay'; did you mean 'weight_decay'"),
        (section(amsgrad=True), "unknown key 'amsgrad'; known keys: betas, bias_correction"),
        (section(max_grad_norm=1.0), "set gradient_clipping at the top level"),
        ({"type": "Lamb", "params": {}}, "'lr' is missing"),
        (section(lr=0.0), "'lr': Input should be greater than 0"),
        (section(lr=math.inf), "'lr'"),
        (section(betas=[0.9, 1.0]), "betas must be two, each at least 0 and below 1"),
        (section(betas=[0.9]), "'betas"),
        (section(eps=-1.0), "eps must be finite and at least 0, not -1.0"),
        (section(weight_decay=-0.01), "weight_decay must be finite"),
        (section(min_coeff=0.3, max_coeff=0.1), r"min_coeff \(0.3\) must not exceed max_coeff"),
        (section(variant="deepsped"), "'variant': Input should be 'apex' or 'deepspeed'"),
        (section(kernel="cuda"), "'kernel': Input should be 'auto', 'plain', 'cpu'"),
        (section(variant="deepspeed", use_nvlamb=True), "has neither use_nvlamb"),
        (section(variant="deepspeed", grad_averaging=False), "nor grad_averaging=False"),
    ],
)
def test_a_wrong_section_is_refused_with_the_way_out(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        lamb_config(wrong)
