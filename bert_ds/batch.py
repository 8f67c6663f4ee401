"""The tensors of one micro batch, as the data reader makes them and the model takes them.

Legend: B sequences, S tokens of the longest row (rounded up), P masked positions of all rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class PretrainingBatch(NamedTuple):
    """One micro batch of pre-masked sequences, padded at the right.

    Attributes:
        input_ids: int64 [B, S], masks applied; padding is piece 0 ([PAD]).
        token_type_ids: int64 [B, S], 0 for segment A and padding, 1 for segment B.
        attention_mask: bool [B, S], True on real tokens.
        masked_lm_positions: int64 [P], index of each masked token in the flattened [B * S].
        masked_lm_ids: int64 [P], the piece that stood there.
        next_sentence_label: int64 [B], 0 true next (or in order), 1 random (or swapped).
    """

    input_ids: torch.Tensor
    token_type_ids: torch.Tensor
    attention_mask: torch.Tensor
    masked_lm_positions: torch.Tensor
    masked_lm_ids: torch.Tensor
    next_sentence_label: torch.Tensor

    def to(self, device: torch.device) -> PretrainingBatch:
        """The same batch on `device`; copies do not block where the memory is pinned."""
        return PretrainingBatch(*(tensor.to(device, non_blocking=True) for tensor in self))
