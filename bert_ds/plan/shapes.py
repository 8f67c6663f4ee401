"""Elements and FLOPs of a recipe's model: counts that follow from its shape alone."""

from __future__ import annotations

from bert_ds.config.model import ModelConfig
from bert_ds.config.recipe import PhaseConfig
from bert_ds.metrics.flops import pretraining_flops


def num_parameters(model: ModelConfig) -> int:
    """Trainable parameters of the pretraining model."""
    h, inner = model.hidden_size, model.intermediate_size
    embeddings = (model.vocab_size + model.max_position_embeddings + model.type_vocab_size) * h
    layer = 4 * (h * h + h) + (h * inner + inner) + (inner * h + h) + 2 * 2 * h
    heads = (h * h + h) + (h * h + h) + 2 * h + model.vocab_size + (2 * h + 2)
    last_norm = 2 * h if model.layer_norm_position == "pre" else 0
    decoder = 0 if model.tie_word_embeddings else model.vocab_size * h
    return embeddings + 2 * h + model.num_hidden_layers * layer + last_norm + heads + decoder


def largest_parameter(model: ModelConfig) -> int:
    """Elements of the largest parameter."""
    inner = max(model.intermediate_size, model.hidden_size)
    return max(model.vocab_size, model.max_position_embeddings, inner) * model.hidden_size


def flops_of_full_rows(model: ModelConfig, phase: PhaseConfig, sequences: int) -> int:
    """Forward and backward FLOPs of rows of a phase's full length, without recomputation."""
    length = phase.sequence_length
    return pretraining_flops(
        model,
        sum_of_lengths=sequences * length,
        sum_of_squared_lengths=sequences * length**2,
        num_predictions=sequences * phase.max_predictions_per_seq,
        num_sequences=sequences,
    )


def recomputed_flops(model: ModelConfig, phase: PhaseConfig, sequences: int) -> int:
    """FLOPs that `execution.recompute_every` adds: the layers' forward pass once more, which is a
    third of what layers take."""
    length = phase.sequence_length
    layers = pretraining_flops(
        model,
        sum_of_lengths=sequences * length,
        sum_of_squared_lengths=sequences * length**2,
        num_predictions=0,
        num_sequences=0,
    )
    return layers // 3
