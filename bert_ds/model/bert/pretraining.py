"""BERT with its pretraining heads. It knows nothing of ranks, engines or global counts.

Parameter names are those of Hugging Face's `BertForPreTraining`.

Legend: B batch, S sequence_length, H hidden_size, V vocab_size, P scored positions of all rows.
"""

from __future__ import annotations

import torch
from torch import nn

from bert_ds.batch import Batch, PackedBatch
from bert_ds.config.model import ModelConfig
from bert_ds.model.bert.encoder import BertEncoder, BertModel
from bert_ds.model.bert.heads import BertPretrainingHeads
from bert_ds.model.row_bounds import Rows
from bert_ds.objectives import PRETRAINING, Encoded, Head, Sums

_PARAMETERS_OF_HEADS: dict[Head, tuple[str, ...]] = {
    "vocabulary": ("cls.predictions.",),
    "pairs": ("bert.pooler.", "cls.seq_relationship."),
}
"""Prefixes of the parameters that nothing but a head uses."""


class BertForPreTraining(nn.Module):
    """BERT's encoder with both heads, trained for `PRETRAINING`.

    The public members are those that `bert_ds.model.family` asks of every network.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config)
        self.cls = BertPretrainingHeads(config)

    @property
    def vocab_size(self) -> int:
        """V, pieces in the vocabulary."""
        return self.config.vocab_size

    def parameters_of_heads(self, heads: set[Head]) -> list[str]:
        """Return the names of the parameters that nothing but these heads uses."""
        prefixes = tuple(prefix for head in heads for prefix in _PARAMETERS_OF_HEADS[head])
        return [name for name, _ in self.named_parameters() if name.startswith(prefixes)]

    def forward(self, batch: Batch) -> Sums:
        """Compute the sums of the objectives' terms over a micro batch.

        Args:
            batch: B rows, padded or end to end; a term may have no answer in it.
        """
        return PRETRAINING.compute(self, self.encode(batch), batch)

    def encode(self, batch: Batch) -> Encoded:
        """Return the hidden states of all positions and those of each row's [CLS]."""
        if isinstance(batch, PackedBatch):
            rows = Rows(batch.cu_seqlens, batch.max_seqlen)
            states = self.bert.encode_rows(
                batch.input_ids, batch.token_type_ids, batch.position_ids, rows
            )
            return Encoded(states, states.index_select(0, batch.cu_seqlens[:-1]))
        states = self.bert(batch.input_ids, batch.token_type_ids, batch.attention_mask)
        return Encoded(states.flatten(0, 1), states[:, 0])

    @property
    def encoder(self) -> BertEncoder:
        """The stack of layers, which execution settings act on."""
        return self.bert.encoder

    def score_vocabulary(self, states: torch.Tensor) -> torch.Tensor:
        """Return the scores of hidden states [P, H], in the parameters' dtype.

        Returns:
            [P, V or more]; columns from V on belong to no piece.
        """
        embeddings = self.bert.embeddings.word_embeddings.weight
        scores: torch.Tensor = self.cls.predictions(states, embeddings)
        return scores

    def score_pairs(self, first: torch.Tensor) -> torch.Tensor:
        """Return the scores of both pair labels, [B, 2], from the states of [CLS], [B, H]."""
        scores: torch.Tensor = self.cls.seq_relationship(self.bert.pooler(first))
        return scores
