"""BERT with its pretraining heads and losses. Knows nothing of ranks, engines or global counts.

Parameter names are those of Hugging Face's `BertForPreTraining`.

Legend: B batch, S sequence_length, H hidden_size, V vocab_size, P masked positions of all rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from bert_ds.batch import NO_PAIR_LABEL, Batch, PackedBatch
from bert_ds.config.model import ModelConfig
from bert_ds.model.encoder import BertModel
from bert_ds.model.heads import BertPretrainingHeads
from bert_ds.model.losses import mlm_loss_sum
from bert_ds.model.row_attention import Rows


class PretrainingLogits(NamedTuple):
    """What the heads say, in the parameters' dtype.

    Attributes:
        mlm: [P, V], score of each piece at each asked position.
        nsp: [B, 2], score of label 0 (true next, or in order) and 1 (random, or swapped).
    """

    mlm: torch.Tensor
    nsp: torch.Tensor


class PretrainingOutput(NamedTuple):
    """Sums over one micro batch; they stay on the device.

    The losses are sums in nats, not means: their denominators are the counts of the global batch
    (all ranks, all micro batches), which only the caller knows.

    Attributes:
        mlm_loss_sum: float32 scalar, sum over P of -log p(original piece).
        nsp_loss_sum: float32 scalar, sum over the rows that have a pair label of -log p(label).
        mlm_correct: int64 scalar, masked positions whose best-scored piece is the original.
        nsp_correct: int64 scalar, rows with a pair label whose best-scored label is right.
    """

    mlm_loss_sum: torch.Tensor
    nsp_loss_sum: torch.Tensor
    mlm_correct: torch.Tensor
    nsp_correct: torch.Tensor

    def loss(self, num_predictions: int, num_pair_labels: int) -> torch.Tensor:
        """Return this micro batch's share of the loss of the global batch, in nats.

        Shares add up to the loss over all micro batches and ranks, however the batch was split.

        Args:
            num_predictions: masked positions of the global batch, the denominator of the MLM loss.
            num_pair_labels: its rows with a pair label, that of the pair loss.
        """
        mlm_loss = self.mlm_loss_sum / max(num_predictions, 1)
        return mlm_loss + self.nsp_loss_sum / max(num_pair_labels, 1)


class BertForPreTraining(nn.Module):
    """BERT for masked language modelling and next sentence (or sentence order) prediction."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config)
        self.cls = BertPretrainingHeads(config)

    def pair_parameter_names(self) -> list[str]:
        """Names of the parameters that only the loss of pair labels depends on."""
        parts = ("bert.pooler.", "cls.seq_relationship.")
        return [name for name, _ in self.named_parameters() if name.startswith(parts)]

    def forward(self, batch: Batch) -> PretrainingOutput:
        """Compute loss sums and correct counts of a micro batch.

        Args:
            batch: B rows with P masked positions, padded or end to end; P may be 0.

        Returns:
            Sums over the P positions and the rows that have a pair label; softmax and logarithm are
            float32 whatever the precision of the parameters.
        """
        if isinstance(batch, PackedBatch):
            logits = self._logits_of_rows(batch)
        else:
            logits = self._logits_of_padded(
                batch.input_ids,
                batch.token_type_ids,
                batch.attention_mask,
                batch.masked_lm_positions,
            )
        vocab_size = self.config.vocab_size
        return PretrainingOutput(
            mlm_loss_sum=mlm_loss_sum(logits.mlm, batch.masked_lm_ids, vocab_size),
            nsp_loss_sum=_cross_entropy_sum(logits.nsp, batch.next_sentence_label),
            mlm_correct=_num_correct(logits.mlm[:, :vocab_size], batch.masked_lm_ids),
            nsp_correct=_num_correct(logits.nsp, batch.next_sentence_label),
        )

    def logits(
        self,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        positions: torch.Tensor,
    ) -> PretrainingLogits:
        """Score the vocabulary at the given positions alone, and the next-sentence labels.

        Args:
            input_ids: int64 [B, S], piece ids.
            token_type_ids: int64 [B, S], segment of each token.
            attention_mask: bool [B, S], True on real tokens.
            positions: int64 [P], indices into the flattened [B * S].

        Returns:
            Logits [P, V] and [B, 2].
        """
        mlm, nsp = self._logits_of_padded(input_ids, token_type_ids, attention_mask, positions)
        return PretrainingLogits(mlm[:, : self.config.vocab_size], nsp)

    def _logits_of_padded(
        self,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        positions: torch.Tensor,
    ) -> PretrainingLogits:
        """`logits`, perhaps with more columns than pieces."""
        hidden_states = self.bert(input_ids, token_type_ids, attention_mask)
        return self._heads(hidden_states.flatten(0, 1), positions, hidden_states[:, 0])

    def _logits_of_rows(self, batch: PackedBatch) -> PretrainingLogits:
        """The logits of rows that lie end to end, perhaps with more columns than pieces."""
        rows = Rows(batch.cu_seqlens, batch.max_seqlen)
        hidden_states = self.bert.encode_rows(
            batch.input_ids, batch.token_type_ids, batch.position_ids, rows
        )
        first = hidden_states.index_select(0, batch.cu_seqlens[:-1])
        return self._heads(hidden_states, batch.masked_lm_positions, first)

    def _heads(
        self, hidden_states: torch.Tensor, positions: torch.Tensor, first: torch.Tensor
    ) -> PretrainingLogits:
        """Logits from all tokens' states [., H], masked positions [P] in them, and [CLS] [B, H]."""
        masked_states = hidden_states.index_select(0, positions)
        return PretrainingLogits(
            mlm=self.cls.predictions(masked_states, self.bert.embeddings.word_embeddings.weight),
            nsp=self.cls.seq_relationship(self.bert.pooler(first)),
        )


def _cross_entropy_sum(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum of -log softmax(logits)[label] in float32, not divided by anything.

    Rows with `NO_PAIR_LABEL` add nothing; without any other row the sum and its gradients are zero.
    """
    return F.cross_entropy(logits.float(), labels, ignore_index=NO_PAIR_LABEL, reduction="sum")


def _num_correct(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """How often the label has the highest score, int64 scalar; `NO_PAIR_LABEL` never has."""
    return (logits.detach().argmax(dim=-1) == labels).sum()
