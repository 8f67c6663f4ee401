"""Multi-head self-attention with its residual and LayerNorm (Vaswani et al. 2017, section 3.2).

Post-LN as in the published BERT: LayerNorm(x + dropout(dense(attention(x)))); or pre-LN: x +
dropout(dense(attention(LayerNorm(x)))), with the LayerNorm under the same name.

Legend: B batch, S sequence_length, T tokens of all rows, H hidden_size, N heads, D head_dim =
H / N.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from bert_ds.config.model import ModelConfig
from bert_ds.model.dropout import Dropout
from bert_ds.model.layer_norm import LayerNorm
from bert_ds.model.row_attention import attend
from bert_ds.model.row_bounds import Rows


class BertSelfAttention(nn.Module):
    """Self-attention: softmax(q k^T / sqrt(D) + mask) v for every head.

    Query, key and value are separate parameters, as in Hugging Face's state dict, so that each
    has a trust ratio of its own and an export renames nothing.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.attention_probs_dropout_prob = config.attention_probs_dropout_prob
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor, rows: torch.Tensor | Rows) -> torch.Tensor:
        """Mix the tokens of each row.

        Args:
            hidden_states: [B, S, H], or [T, H] where rows lie end to end.
            rows: for the former a mask, bool [B, 1, 1, S], True where a key may be attended to
                (every row needs at least one True, which [CLS] is); for the latter where they lie.

        Returns:
            As hidden_states, the heads' outputs side by side.
        """
        heads = (self.num_attention_heads, self.head_dim)
        query, key, value = (
            project(hidden_states).unflatten(-1, heads)
            for project in (self.query, self.key, self.value)
        )
        p = self.attention_probs_dropout_prob if self.training else 0.0
        if isinstance(rows, Rows):
            return attend(query, key, value, rows, p).flatten(1)
        q, k, v = (each.transpose(1, 2) for each in (query, key, value))
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=rows, dropout_p=p)
        return context.transpose(1, 2).flatten(2)


class ResidualOutput(nn.Module):
    """The start and the end of a sub-layer, and the only place that knows post-LN from pre-LN.

    post-LN: `before` does nothing, `forward` is LayerNorm(residual + dropout(dense(x))).
    pre-LN: `before` is LayerNorm(x), `forward` is residual + dropout(dense(x)).
    """

    def __init__(self, config: ModelConfig, in_features: int) -> None:
        super().__init__()
        self.dense = nn.Linear(in_features, config.hidden_size)
        self.LayerNorm = LayerNorm(config)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.is_pre = config.layer_norm_position == "pre"

    def before(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return what the sub-layer works on: its input, normalised under pre-LN."""
        normalised: torch.Tensor = self.LayerNorm(hidden_states) if self.is_pre else hidden_states
        return normalised

    def forward(self, sublayer_output: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Add the sub-layer's projected output to its input, normalised under post-LN.

        Args:
            sublayer_output: [..., in_features].
            residual: [..., H], the input of the sub-layer, before any normalisation.

        Returns:
            [..., H].
        """
        output: torch.Tensor = residual + self.dropout(self.dense(sublayer_output))
        return output if self.is_pre else self.LayerNorm(output)


class BertAttention(nn.Module):
    """The attention sub-layer: self-attention, then its output projection, residual, LayerNorm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self = BertSelfAttention(config)
        self.output = ResidualOutput(config, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor, rows: torch.Tensor | Rows) -> torch.Tensor:
        """Return hidden states of the given shape, [B, S, H] or [T, H].

        Args:
            hidden_states: [B, S, H], or [T, H] where rows lie end to end.
            rows: mask or bounds of the rows, see `BertSelfAttention.forward`.
        """
        context = self.self(self.output.before(hidden_states), rows)
        attended: torch.Tensor = self.output(context, hidden_states)
        return attended
