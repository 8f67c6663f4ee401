"""Elements and FLOPs of a recipe's model: counts that follow from its shape alone."""

from __future__ import annotations

from bert_ds.config.model import ModelConfig
from bert_ds.config.recipe import PhaseConfig
from bert_ds.model.shapes import shape_of


def num_parameters(model: ModelConfig) -> int:
    """Return the trainable parameters of the pretraining model."""
    return shape_of(model).num_parameters(model)


def largest_parameter(model: ModelConfig) -> int:
    """Return the elements of the largest parameter."""
    return shape_of(model).largest_parameter(model)


def flops_of_full_rows(model: ModelConfig, phase: PhaseConfig, sequences: int) -> int:
    """Forward and backward FLOPs of rows of a phase's full length, without recomputation."""
    length = phase.sequence_length
    return shape_of(model).flops(
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
    layers = shape_of(model).flops(
        model,
        sum_of_lengths=sequences * length,
        sum_of_squared_lengths=sequences * length**2,
        num_predictions=0,
        num_sequences=0,
    )
    return layers // 3
