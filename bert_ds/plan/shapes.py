"""Counts elements and FLOPs of a recipe's model, which follow from its shape alone."""

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
    """Return forward and backward FLOPs of full rows of a phase, without recomputation.

    Args:
        model: shape of the model.
        phase: settings of the phase.
        sequences: number of rows.
    """
    length = phase.sequence_length
    return shape_of(model).flops(
        model,
        sum_of_lengths=sequences * length,
        sum_of_squared_lengths=sequences * length**2,
        num_predictions=sequences * phase.max_predictions_per_seq,
        num_sequences=sequences,
    )


def recomputed_flops(model: ModelConfig, phase: PhaseConfig, sequences: int) -> int:
    """Return the FLOPs that `execution.recompute_every` adds.

    The layers' forward pass is computed once more, which is a third of the layers' FLOPs.

    Args:
        model: shape of the model.
        phase: settings of the phase.
        sequences: number of rows.
    """
    length = phase.sequence_length
    layers = shape_of(model).flops(
        model,
        sum_of_lengths=sequences * length,
        sum_of_squared_lengths=sequences * length**2,
        num_predictions=0,
        num_sequences=0,
    )
    return layers // 3
