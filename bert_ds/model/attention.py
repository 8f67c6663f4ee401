"""Multi-head self-attention with its residual and LayerNorm (Vaswani et al. 2017, section 3.2).

Post-LN as in the published BERT: LayerNorm(x + dropout(dense(attention(x)))).

Legend: B batch, S sequence_length, H hidden_size, N heads, D head_dim = H / N.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from bert_ds.config.model import ModelConfig


class BertSelfAttention(nn.Module):
    """softmax(q k^T / sqrt(D) + mask) v for every head.

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

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Mix the tokens of each row.

        Args:
            hidden_states: [B, S, H].
            attention_mask: bool [B, 1, 1, S], True where a key may be attended to. Every row needs
                at least one True, which [CLS] is.

        Returns:
            [B, S, H], the heads' outputs side by side.
        """
        context = F.scaled_dot_product_attention(
            self._split_heads(self.query(hidden_states)),
            self._split_heads(self.key(hidden_states)),
            self._split_heads(self.value(hidden_states)),
            attn_mask=attention_mask,
            dropout_p=self.attention_probs_dropout_prob if self.training else 0.0,
        )
        return context.transpose(1, 2).flatten(2)

    def _split_heads(self, projected: torch.Tensor) -> torch.Tensor:
        """[B, S, H] to [B, N, S, D]."""
        heads = (self.num_attention_heads, self.head_dim)
        return projected.view(*projected.shape[:-1], *heads).transpose(1, 2)


class ResidualOutput(nn.Module):
    """The end of a sub-layer: LayerNorm(residual + dropout(dense(x)))."""

    def __init__(self, config: ModelConfig, in_features: int) -> None:
        super().__init__()
        self.dense = nn.Linear(in_features, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, sublayer_output: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Close the sub-layer.

        Args:
            sublayer_output: [B, S, in_features].
            residual: [B, S, H], what went into the sub-layer.

        Returns:
            [B, S, H].
        """
        output: torch.Tensor = self.LayerNorm(residual + self.dropout(self.dense(sublayer_output)))
        return output


class BertAttention(nn.Module):
    """The attention sub-layer: self-attention, then its output projection, residual, LayerNorm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self = BertSelfAttention(config)
        self.output = ResidualOutput(config, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """[B, S, H] and bool [B, 1, 1, S] to [B, S, H]."""
        context = self.self(hidden_states, attention_mask)
        attended: torch.Tensor = self.output(context, hidden_states)
        return attended
