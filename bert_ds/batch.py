"""The tensors of one micro batch, as the data reader makes them and the model takes them.

Legend: B sequences, S tokens of the longest row (rounded up), T tokens of all rows, P masked
positions of all rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

NO_PAIR_LABEL = -100
"""Label of a row that is a single segment; losses and counts leave it out, as torch's do."""


class PretrainingBatch(NamedTuple):
    """One micro batch of pre-masked sequences, padded at the right.

    Attributes:
        input_ids: int64 [B, S], masks applied; padding is piece 0 ([PAD]).
        token_type_ids: int64 [B, S], 0 for segment A and padding, 1 for segment B.
        attention_mask: bool [B, S], True on real tokens.
        masked_lm_positions: int64 [P], index of each masked token in the flattened [B * S].
        masked_lm_ids: int64 [P], the piece that stood there.
        next_sentence_label: int64 [B], 0 true next (or in order), 1 random (or swapped),
            `NO_PAIR_LABEL` where the row is a single segment.
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


class PackedBatch(NamedTuple):
    """The same rows end to end, as attention without padding takes them.

    Attributes:
        input_ids: int64 [T], masks applied.
        token_type_ids: int64 [T], 0 for segment A, 1 for segment B.
        position_ids: int64 [T], place of each token in its row.
        cu_seqlens: int32 [B + 1], where each row begins, and T.
        max_seqlen: tokens of the longest row.
        masked_lm_positions: int64 [P], index of each masked token in [T].
        masked_lm_ids: int64 [P], the piece that stood there.
        next_sentence_label: int64 [B], as in `PretrainingBatch`.
    """

    input_ids: torch.Tensor
    token_type_ids: torch.Tensor
    position_ids: torch.Tensor
    cu_seqlens: torch.Tensor
    max_seqlen: int
    masked_lm_positions: torch.Tensor
    masked_lm_ids: torch.Tensor
    next_sentence_label: torch.Tensor

    def to(self, device: torch.device) -> PackedBatch:
        """The same batch on `device`; copies do not block where the memory is pinned."""

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device, non_blocking=True)

        return PackedBatch(
            input_ids=moved(self.input_ids),
            token_type_ids=moved(self.token_type_ids),
            position_ids=moved(self.position_ids),
            cu_seqlens=moved(self.cu_seqlens),
            max_seqlen=self.max_seqlen,
            masked_lm_positions=moved(self.masked_lm_positions),
            masked_lm_ids=moved(self.masked_lm_ids),
            next_sentence_label=moved(self.next_sentence_label),
        )


Batch = PretrainingBatch | PackedBatch
"""What the model takes; the same rows give the same losses, to rounding."""
