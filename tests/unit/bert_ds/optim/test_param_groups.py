"""Which parameters decay, and that none is forgotten or listed twice."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bert_ds.config.model import ModelConfig
from bert_ds.errors import ConfigError
from bert_ds.model.bert.pretraining import BertForPreTraining
from bert_ds.optim import param_groups
from bert_ds.optim.param_groups import check_every_parameter_is_in_one_group


def bert() -> BertForPreTraining:
    config = ModelConfig(
        vocab_size=11,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=4,
    )
    return BertForPreTraining(config)


def test_what_no_loss_depends_on_is_not_decayed() -> None:
    model = bert()
    unused = model.parameters_of_heads({"pairs"})
    assert unused == [
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
        "cls.seq_relationship.weight",
        "cls.seq_relationship.bias",
    ]
    decayed, exempt = param_groups(model, 0.01, unused)
    assert not set(unused) & set(decayed["names"])
    assert set(unused) <= set(exempt["names"])


def test_biases_and_layer_norms_are_exempt_and_the_rest_decays() -> None:
    decayed, exempt = param_groups(bert(), weight_decay=0.01)
    assert (decayed["weight_decay"], exempt["weight_decay"]) == (0.01, 0.0)
    layer = "bert.encoder.layer.0"
    assert decayed["names"] == [
        "bert.embeddings.word_embeddings.weight",
        "bert.embeddings.position_embeddings.weight",
        "bert.embeddings.token_type_embeddings.weight",
        f"{layer}.attention.self.query.weight",
        f"{layer}.attention.self.key.weight",
        f"{layer}.attention.self.value.weight",
        f"{layer}.attention.output.dense.weight",
        f"{layer}.intermediate.dense.weight",
        f"{layer}.output.dense.weight",
        "bert.pooler.dense.weight",
        "cls.predictions.transform.dense.weight",
        "cls.seq_relationship.weight",
    ]
    assert "cls.predictions.bias" in exempt["names"]
    assert "bert.embeddings.LayerNorm.weight" in exempt["names"]
    assert f"{layer}.attention.self.key.bias" in exempt["names"]


def test_every_parameter_is_there_once_under_its_name() -> None:
    model = bert()
    groups = param_groups(model, weight_decay=0.01)
    listed = {
        name: id(parameter)
        for group in groups
        for name, parameter in zip(group["names"], group["params"], strict=True)
    }
    assert listed == {name: id(parameter) for name, parameter in model.named_parameters()}
    assert sum(len(group["names"]) for group in groups) == len(listed)


def test_a_tied_parameter_is_listed_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    (group,) = param_groups(model, weight_decay=0.01)
    assert group["names"] == ["0.weight"]


def test_frozen_parameters_are_left_out() -> None:
    model = bert()
    model.bert.embeddings.requires_grad_(False)
    names = {name for group in param_groups(model, 0.01) for name in group["names"]}
    assert not any(name.startswith("bert.embeddings") for name in names)
    assert "bert.pooler.dense.weight" in names


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match="no trainable parameter"):
        param_groups(bert().requires_grad_(False), 0.01)


def test_a_parameter_in_no_group_is_refused_by_name() -> None:
    model = bert()
    groups = param_groups(model, 0.01)
    groups[0]["params"] = [
        p for p in groups[0]["params"] if p is not model.bert.pooler.dense.weight
    ]
    with pytest.raises(ConfigError, match=r"never learn: bert\.pooler\.dense\.weight;"):
        check_every_parameter_is_in_one_group(model, groups)


def test_a_parameter_in_two_groups_is_refused_by_name() -> None:
    model = bert()
    groups = param_groups(model, 0.01)
    groups[1]["params"].append(model.bert.pooler.dense.weight)
    with pytest.raises(ConfigError, match=r"more than one .* group: bert\.pooler\.dense\.weight;"):
        check_every_parameter_is_in_one_group(model, groups)


def test_a_parameter_of_another_model_is_refused() -> None:
    model = bert()
    groups = param_groups(model, 0.01)
    groups[0]["params"].append(nn.Parameter(torch.ones(1)))
    with pytest.raises(ConfigError, match="1 parameters in the optimizer groups are frozen or not"):
        check_every_parameter_is_in_one_group(model, groups)
