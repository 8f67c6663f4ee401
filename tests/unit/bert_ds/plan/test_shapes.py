"""Counts that follow from a model's shape."""

from __future__ import annotations

import pytest

from bert_ds.config.model import ModelConfig
from bert_ds.model.bert.pretraining import BertForPreTraining
from bert_ds.plan.shapes import largest_parameter, num_parameters


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(hidden_size=24, num_attention_heads=2, num_hidden_layers=3, vocab_size=101),
        ModelConfig(hidden_size=8, num_attention_heads=1, num_hidden_layers=1, type_vocab_size=3),
        ModelConfig(hidden_size=8, num_attention_heads=1, layer_norm_position="pre"),
        ModelConfig(hidden_size=8, num_attention_heads=1, tie_word_embeddings=False),
    ],
)
def test_the_counts_of_parameters_are_the_models_own(config: ModelConfig) -> None:
    sizes = [p.numel() for p in BertForPreTraining(config).parameters()]
    assert num_parameters(config) == sum(sizes)
    assert largest_parameter(config) == max(sizes)
