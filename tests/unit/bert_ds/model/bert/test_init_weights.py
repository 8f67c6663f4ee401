"""Initial weights: their distribution, and that they depend on seed and name alone."""

from __future__ import annotations

import math

import pytest
import torch

from bert_ds.config.model import ModelConfig
from bert_ds.model.bert.init import init_weights
from bert_ds.model.bert.pretraining import BertForPreTraining

# Standard deviation of a unit normal cut at two sigma: sqrt(1 - 4 phi(2) / (2 Phi(2) - 1)).
CUT_STD = math.sqrt(1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(2 / math.sqrt(2)))


def initialised(config: ModelConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    model = BertForPreTraining(config)
    init_weights(model, seed)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def test_weights_are_a_normal_cut_at_two_sigma(tiny_config: ModelConfig) -> None:
    config = tiny_config.model_copy(update={"vocab_size": 5000, "initializer_range": 0.03})
    weight = initialised(config)["bert.embeddings.word_embeddings.weight"].double()
    # 160,000 draws: the mean is within 5 of its standard errors, the deviation within 1%.
    assert weight.mean().item() == pytest.approx(0.0, abs=5 * 0.03 / math.sqrt(160_000))
    assert weight.std().item() == pytest.approx(CUT_STD * 0.03, rel=0.01)
    assert 0.0599 < weight.abs().max().item() <= 0.06
    assert weight[0].abs().min().item() > 0.0  # the row of [PAD] is an ordinary row


def test_biases_are_0_and_layer_norms_1(tiny_config: ModelConfig) -> None:
    num_layer_norms = 0
    for name, value in initialised(tiny_config).items():
        if name.endswith("LayerNorm.weight"):
            assert torch.equal(value, torch.ones_like(value)), name
            num_layer_norms += 1
        elif name.endswith("bias"):
            assert not value.any(), name
        else:
            assert value.std() > 0.01, name
    assert num_layer_norms == 2 + 2 * tiny_config.num_hidden_layers


def test_weights_do_not_depend_on_the_global_random_state_nor_move_it(
    tiny_config: ModelConfig,
) -> None:
    torch.manual_seed(1)
    first = initialised(tiny_config)
    torch.manual_seed(2)
    model = BertForPreTraining(tiny_config)
    before = torch.get_rng_state()
    init_weights(model, 0)
    assert torch.equal(torch.get_rng_state(), before)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, first[name]), name


def test_weights_of_a_tensor_do_not_depend_on_the_other_tensors(tiny_config: ModelConfig) -> None:
    shallow = initialised(tiny_config.model_copy(update={"num_hidden_layers": 1}))
    deep = initialised(tiny_config)
    assert len(deep) > len(shallow)
    for name, value in shallow.items():
        assert torch.equal(value, deep[name]), name


def test_tensors_and_seeds_differ(tiny_config: ModelConfig) -> None:
    weights = initialised(tiny_config)
    query = weights["bert.encoder.layer.0.attention.self.query.weight"]
    assert not torch.equal(query, weights["bert.encoder.layer.0.attention.self.key.weight"])
    assert not torch.equal(query, weights["bert.encoder.layer.1.attention.self.query.weight"])
    other = initialised(tiny_config, seed=1)
    assert not torch.equal(query, other["bert.encoder.layer.0.attention.self.query.weight"])


def test_a_half_precision_model_starts_from_the_rounded_float32_weights(
    tiny_config: ModelConfig,
) -> None:
    model = BertForPreTraining(tiny_config).to(torch.bfloat16)
    init_weights(model, 0)
    full = initialised(tiny_config)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, full[name].to(torch.bfloat16)), name
