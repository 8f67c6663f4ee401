"""Floating-point operations of pretraining, from the real lengths of the rows.

Legend: B sequences, s tokens of one of them, P masked positions, H hidden_size,
I intermediate_size, V vocab_size, L num_hidden_layers.
"""

from __future__ import annotations

from bert_ds.config.model import ModelConfig


def pretraining_flops(
    config: ModelConfig,
    *,
    sum_of_lengths: int,
    sum_of_squared_lengths: int,
    num_predictions: int,
    num_sequences: int,
) -> int:
    """Return the FLOPs of the matrix products in forward and backward, without recomputation.

    A product of [a, b] and [b, c] takes 2 a b c operations, and its backward pass two products of
    the same size, hence 6 a b c. Per layer and sequence:

        query, key, value, output    4 products [s, H] [H, H]        24 s H^2
        feed-forward                 2 products [s, H] [H, I]        12 s H I
        scores and context           2 products over heads           12 s^2 H
    and once:
        MLM head                     [P, H] [H, H] and [P, H] [H, V]  6 P (H^2 + H V)
        pooler and NSP head          [B, H] [H, H] and [B, H] [H, 2]  6 B (H^2 + 2 H)

    With I = 4 H the layers come to 72 L s H^2 (1 + s / (6 H)), the published form (Narayanan et
    al. 2021, arXiv:2104.04473, equation 3, without the factor 4/3 of recomputation and with the
    head on masked positions alone). The pooler, which published figures leave out, is 3e-5 of
    BERT-large. Element-wise work, LayerNorm, softmax and the optimizer are not counted, nor is
    what a fused attention kernel computes again in its backward pass.

    Args:
        config: Shape of the network.
        sum_of_lengths: Sum of s, real tokens.
        sum_of_squared_lengths: Sum of s^2.
        num_predictions: Masked positions P of all sequences.
        num_sequences: B.

    Returns:
        FLOPs of all the sequences together.
    """
    hidden, intermediate = config.hidden_size, config.intermediate_size
    per_token = 24 * hidden**2 + 12 * hidden * intermediate
    layers = config.num_hidden_layers * (
        per_token * sum_of_lengths + 12 * hidden * sum_of_squared_lengths
    )
    vocabulary = 6 * num_predictions * (hidden**2 + hidden * config.vocab_size)
    pairs = 6 * num_sequences * (hidden**2 + 2 * hidden)
    return layers + vocabulary + pairs
