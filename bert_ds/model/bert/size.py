"""The size of BERT's parameters, from its shape alone."""

from __future__ import annotations

from bert_ds.config.model import ModelConfig


def num_parameters(model: ModelConfig) -> int:
    """Return the number of trainable parameters, heads included."""
    h, inner = model.hidden_size, model.intermediate_size
    embeddings = (model.vocab_size + model.max_position_embeddings + model.type_vocab_size) * h
    layer = 4 * (h * h + h) + (h * inner + inner) + (inner * h + h) + 2 * 2 * h
    heads = (h * h + h) + (h * h + h) + 2 * h + model.vocab_size + (2 * h + 2)
    last_norm = 2 * h if model.layer_norm_position == "pre" else 0
    decoder = 0 if model.tie_word_embeddings else model.vocab_size * h
    return embeddings + 2 * h + model.num_hidden_layers * layer + last_norm + heads + decoder


def largest_parameter(model: ModelConfig) -> int:
    """Return the number of elements of the largest parameter."""
    inner = max(model.intermediate_size, model.hidden_size)
    return max(model.vocab_size, model.max_position_embeddings, inner) * model.hidden_size
