"""The Transformer encoder and `BertModel`: embeddings, encoder and pooler (Devlin et al. 2018).

Only the attention looks across tokens; everything else works token by token on the last dimension.

Legend: B batch, S sequence_length, T tokens of all rows, H hidden_size.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from bert_ds.config.model import ModelConfig
from bert_ds.errors import DataError
from bert_ds.model.bert.attention import BertAttention, ResidualOutput
from bert_ds.model.bert.embeddings import BertEmbeddings
from bert_ds.model.layer_norm import LayerNorm
from bert_ds.model.row_bounds import Rows


def activation(config: ModelConfig) -> nn.GELU:
    """Return the activation that `hidden_act` names (Hendrycks and Gimpel 2016, 1606.08415)."""
    return nn.GELU(approximate="tanh" if config.hidden_act == "gelu_tanh" else "none")


class BertIntermediate(nn.Module):
    """The widening half of the feed-forward sub-layer: gelu(dense(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = activation(config)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Map [..., H] to [..., intermediate_size]."""
        widened: torch.Tensor = self.activation(self.dense(hidden_states))
        return widened


class BertLayer(nn.Module):
    """One Transformer layer: attention and feed-forward, each with its residual and LayerNorm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = BertAttention(config)
        self.intermediate = BertIntermediate(config)
        self.output = ResidualOutput(config, config.intermediate_size)

    def forward(self, hidden_states: torch.Tensor, rows: torch.Tensor | Rows) -> torch.Tensor:
        """Return hidden states of the given shape, [B, S, H] or [T, H].

        Args:
            hidden_states: [B, S, H], or [T, H] where rows lie end to end.
            rows: mask or bounds of the rows, see `BertSelfAttention.forward`.
        """
        attended = self.attention(hidden_states, rows)
        widened = self.intermediate(self.output.before(attended))
        output: torch.Tensor = self.output(widened, attended)
        return output


class BertEncoder(nn.Module):
    """The stack of layers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.recompute_every = 0
        """Layers per recomputed group: in training each group keeps its input alone, and computes
        its activations again in the backward pass. 0 keeps all activations."""
        self.layer = nn.ModuleList(BertLayer(config) for _ in range(config.num_hidden_layers))
        self.LayerNorm: LayerNorm | None = None
        if config.layer_norm_position == "pre":
            self.LayerNorm = LayerNorm(config)

    def forward(self, hidden_states: torch.Tensor, rows: torch.Tensor | Rows) -> torch.Tensor:
        """Return hidden states of the given shape, [B, S, H] or [T, H].

        Args:
            hidden_states: [B, S, H], or [T, H] where rows lie end to end.
            rows: mask or bounds of the rows, see `BertSelfAttention.forward`.
        """
        encoded = self._run_all(hidden_states, rows)
        return encoded if self.LayerNorm is None else self.LayerNorm(encoded)

    def _run_all(self, hidden_states: torch.Tensor, rows: torch.Tensor | Rows) -> torch.Tensor:
        """Run all layers, with or without keeping their activations."""
        if not (self.recompute_every and self.training):
            return self._run(0, len(self.layer), hidden_states, rows)
        for first in range(0, len(self.layer), self.recompute_every):
            last = min(first + self.recompute_every, len(self.layer))
            hidden_states = checkpoint(  # it draws the same dropout again
                self._run, first, last, hidden_states, rows, use_reentrant=False
            )
        return hidden_states

    def _run(
        self, first: int, last: int, hidden_states: torch.Tensor, rows: torch.Tensor | Rows
    ) -> torch.Tensor:
        """Run layers `first` to `last` - 1."""
        for layer in self.layer[first:last]:
            hidden_states = layer(hidden_states, rows)
        return hidden_states


class BertPooler(nn.Module):
    """The pooler: tanh(dense(x)) of the first token, [CLS]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Map the [CLS] states of all rows, [B, H], to [B, H]."""
        return torch.tanh(self.dense(hidden_states))


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
        self._check_length(input_ids.shape[1])
        position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden_states = self.embeddings(input_ids, token_type_ids, position_ids)
        encoded: torch.Tensor = self.encoder(hidden_states, attention_mask[:, None, None, :])
        return encoded

    def encode_rows(
        self,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor,
        position_ids: torch.Tensor,
        rows: Rows,
    ) -> torch.Tensor:
        """Encode rows that lie end to end: no work is done on padding.

        Args:
            input_ids: int64 [T], piece ids.
            token_type_ids: int64 [T], segment of each token.
            position_ids: int64 [T], place of each token in its row.
            rows: where the rows lie.

        Returns:
            [T, H], what `forward` gives at these tokens, to rounding.

        Raises:
            DataError: A row is longer than there are position embeddings.
        """
        self._check_length(rows.max_seqlen)
        encoded: torch.Tensor = self.encoder(
            self.embeddings(input_ids, token_type_ids, position_ids), rows
        )
        return encoded

    def _check_length(self, sequence_length: int) -> None:
        if sequence_length > self.max_position_embeddings:
            raise DataError(
                f"rows of {sequence_length} tokens exceed max_position_embeddings "
                f"({self.max_position_embeddings}); use shorter sequences or a model with more "
                "position embeddings."
            )
