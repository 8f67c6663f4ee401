"""The two pretraining heads: masked language model and next sentence (Devlin et al. 2018, 3.1).

Legend: B batch, H hidden_size, V vocab_size, P masked positions of all rows.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from bert_ds.config.model import ModelConfig
from bert_ds.model.encoder import activation


class BertPredictionTransform(nn.Module):
    """LayerNorm(gelu(dense(x))), the step between the encoder and the vocabulary."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(config)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[P, H] to [P, H]."""
        transformed: torch.Tensor = self.LayerNorm(self.activation(self.dense(hidden_states)))
        return transformed


class BertMaskedLMHead(nn.Module):
    """Scores every piece of the vocabulary for each given position.

    The decoder matrix is the word embedding matrix itself (Press and Wolf 2017,
    arXiv:1608.05859). It comes in as an argument and is no parameter of this module, so the state
    dict and the optimizer hold it once.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.transform = BertPredictionTransform(config)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden_states: torch.Tensor, word_embeddings: torch.Tensor) -> torch.Tensor:
        """Compute logits.

        Args:
            hidden_states: [P, H], the encoder's output at the masked positions.
            word_embeddings: [V, H], the tied decoder matrix.

        Returns:
            [P, V] in the parameters' dtype.
        """
        return F.linear(self.transform(hidden_states), word_embeddings, self.bias)


class BertPretrainingHeads(nn.Module):
    """Both heads, under the names of Hugging Face's state dict."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.predictions = BertMaskedLMHead(config)
        self.seq_relationship = nn.Linear(config.hidden_size, 2)
