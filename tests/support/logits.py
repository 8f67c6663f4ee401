"""The scores of both heads for padded rows."""

from __future__ import annotations

from typing import NamedTuple

import torch

from bert_ds.batch import PretrainingBatch
from bert_ds.model.bert.pretraining import BertForPreTraining


class Logits(NamedTuple):
    """In the parameters' dtype."""

    mlm: torch.Tensor
    """[P, V], the scores of the pieces at each asked position."""
    nsp: torch.Tensor
    """[B, 2], the scores of the pair labels."""


def logits_of(
    model: BertForPreTraining,
    input_ids: torch.Tensor,
    token_type_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    positions: torch.Tensor,
) -> Logits:
    """Score the vocabulary at positions of the flattened [B * S], and the rows' pair labels."""
    nothing = torch.empty(0, dtype=torch.int64)
    batch = PretrainingBatch(input_ids, token_type_ids, attention_mask, positions, nothing, nothing)
    encoded = model.encode(batch)
    scores = model.score_vocabulary(encoded.tokens.index_select(0, positions))
    return Logits(scores[:, : model.vocab_size], model.score_pairs(encoded.first))
