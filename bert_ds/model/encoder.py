"""The Transformer encoder and `BertModel`: embeddings, encoder and pooler (Devlin et al. 2018).

Only the attention looks across tokens; everything else works token by token on the last dimension.

Legend: B batch, S sequence_length, H hidden_size.
"""

from __future__ import annotations

import torch
from torch import nn

from bert_ds.config.model import ModelConfig
from bert_ds.errors import DataError
from bert_ds.model.attention import BertAttention, ResidualOutput
from bert_ds.model.embeddings import BertEmbeddings


def activation(config: ModelConfig) -> nn.GELU:
    """The activation that `hidden_act` names (Hendrycks and Gimpel 2016, arXiv:1606.08415)."""
    return nn.GELU(approximate="tanh" if config.hidden_act == "gelu_tanh" else "none")


class BertIntermediate(nn.Module):
    """The widening half of the feed-forward sub-layer: gelu(dense(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = activation(config)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[B, S, H] to [B, S, intermediate_size]."""
        widened: torch.Tensor = self.activation(self.dense(hidden_states))
        return widened


class BertLayer(nn.Module):
    """One Transformer layer: attention and feed-forward, each closed by residual and LayerNorm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = BertAttention(config)
        self.intermediate = BertIntermediate(config)
        self.output = ResidualOutput(config, config.intermediate_size)

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """[B, S, H] and bool [B, 1, 1, S] to [B, S, H]."""
        attended = self.attention(hidden_states, attention_mask)
        output: torch.Tensor = self.output(self.intermediate(attended), attended)
        return output


class BertEncoder(nn.Module):
    """The stack of layers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(BertLayer(config) for _ in range(config.num_hidden_layers))

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """[B, S, H] and bool [B, 1, 1, S] to [B, S, H]."""
        for layer in self.layer:
            hidden_states = layer(hidden_states, attention_mask)
        return hidden_states


class BertPooler(nn.Module):
    """tanh(dense(x)) of the first token, [CLS]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[B, S, H] to [B, H]."""
        return torch.tanh(self.dense(hidden_states[:, 0]))


class BertModel(nn.Module):
    """The body that every task shares.

    `forward` stops before the pooler: heads that need it call `pooler` on the result, so that a
    token-level task computes nothing it does not use.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.max_position_embeddings = config.max_position_embeddings
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertEncoder(config)
        self.pooler = BertPooler(config)

    def forward(
        self, input_ids: torch.Tensor, token_type_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        """Encode a batch padded at the right.

        Args:
            input_ids: int64 [B, S], piece ids.
            token_type_ids: int64 [B, S], segment of each token.
            attention_mask: bool [B, S], True on real tokens.

        Returns:
            [B, S, H], the last layer's output; rows of padding hold values without meaning.

        Raises:
            DataError: The rows are longer than there are position embeddings.
        """
        sequence_length = input_ids.shape[1]
        if sequence_length > self.max_position_embeddings:
            raise DataError(
                f"rows of {sequence_length} tokens exceed max_position_embeddings "
                f"({self.max_position_embeddings}); use shorter sequences or a model with more "
                "position embeddings."
            )
        position_ids = torch.arange(sequence_length, device=input_ids.device)
        hidden_states = self.embeddings(input_ids, token_type_ids, position_ids)
        encoded: torch.Tensor = self.encoder(hidden_states, attention_mask[:, None, None, :])
        return encoded
