"""Embeddings: piece + position + segment, then LayerNorm and dropout (Devlin et al. 2018).

Legend: B batch, S sequence_length, T tokens of all rows, H hidden_size.
"""

from __future__ import annotations

import torch
from torch import nn

from bert_ds.config.model import ModelConfig
from bert_ds.model.dropout import Dropout
from bert_ds.model.layer_norm import LayerNorm


class BertEmbeddings(nn.Module):
    """The sum of the three embeddings of each token, normalised.

    The row of [PAD] is an ordinary row: padding never reaches a loss, so its gradient is zero
    without being treated as special.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = LayerNorm(config)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self, input_ids: torch.Tensor, token_type_ids: torch.Tensor, position_ids: torch.Tensor
    ) -> torch.Tensor:
        """Embed the tokens.

        Args:
            input_ids: int64 [B, S], piece ids; or [T], where rows lie end to end.
            token_type_ids: int64, as input_ids, segment of each token; ignored where the model
                has one segment type.
            position_ids: int64, broadcast against input_ids: place of each token in its row.

        Returns:
            [B, S, H] or [T, H] in the parameters' dtype.
        """
        if self.token_type_embeddings.num_embeddings == 1:
            token_type_ids = torch.zeros_like(token_type_ids)
        embeddings = (
            self.word_embeddings(input_ids)
            + self.token_type_embeddings(token_type_ids)
            + self.position_embeddings(position_ids)
        )
        normalised: torch.Tensor = self.dropout(self.LayerNorm(embeddings))
        return normalised
