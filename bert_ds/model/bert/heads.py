"""The two pretraining heads: masked language model and next sentence (Devlin et al. 2018, 3.1).

Legend: B batch, H hidden_size, V vocab_size, P masked positions of all rows.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from bert_ds.config.model import ModelConfig
from bert_ds.model.bert.encoder import activation
from bert_ds.model.layer_norm import LayerNorm


class BertPredictionTransform(nn.Module):
    """The step between the encoder and the vocabulary: LayerNorm(gelu(dense(x)))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(config)
        self.LayerNorm = LayerNorm(config)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Map [P, H] to [P, H]."""
        transformed: torch.Tensor = self.LayerNorm(self.activation(self.dense(hidden_states)))
        return transformed


class BertMaskedLMHead(nn.Module):
    """The head that scores every piece of the vocabulary for each given position.

    The tied decoder matrix is the word embedding matrix itself. It comes in as an argument and is
    no parameter of this module, so the state dict and the optimizer hold it once.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.vocabulary_multiple: int | None = None
        """What V is rounded up to for the matrix products, with rows of zeros that belong to no
        parameter. None takes 64 on GPUs, whose tensor cores are slow with BERT's 30,522 columns,
        and 1 on CPUs, where rounding gains nothing."""
        self.transform = BertPredictionTransform(config)
        self.decoder: nn.Linear | None = None
        """The decoder matrix where it is not tied."""
        if not config.tie_word_embeddings:
            self.decoder = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden_states: torch.Tensor, word_embeddings: torch.Tensor) -> torch.Tensor:
        """Compute the scores of all pieces.

        Args:
            hidden_states: [P, H], the encoder's output at the masked positions.
            word_embeddings: [V, H], the decoder matrix where it is tied.

        Returns:
            [P, V or more] in the parameters' dtype; columns from V on belong to no piece.
        """
        weight = word_embeddings if self.decoder is None else self.decoder.weight
        bias: torch.Tensor = self.bias
        multiple = self.vocabulary_multiple or (64 if hidden_states.is_cuda else 1)
        num_missing = -len(bias) % multiple
        if num_missing:
            weight, bias = F.pad(weight, (0, 0, 0, num_missing)), F.pad(bias, (0, num_missing))
        return F.linear(self.transform(hidden_states), weight, bias)


class BertPretrainingHeads(nn.Module):
    """Both heads, under the names of Hugging Face's state dict."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.predictions = BertMaskedLMHead(config)
        self.seq_relationship = nn.Linear(config.hidden_size, 2)
