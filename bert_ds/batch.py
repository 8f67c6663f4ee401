"""The tensors of one micro batch, which the data reader makes and the model takes.

Legend: B sequences, S tokens of the longest row (rounded up), T tokens of all rows, P masked
positions of all rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

NO_PAIR_LABEL = -100
"""Label of a row that is a single segment; losses and counts ignore it, as torch's do."""


class PretrainingBatch(NamedTuple):
    """One micro batch of masked sequences, padded at the right."""

    input_ids: torch.Tensor
    """int64 [B, S], pieces with masks applied; padding is piece 0 ([PAD])."""
    token_type_ids: torch.Tensor
    """int64 [B, S], 0 for segment A and padding, 1 for segment B."""
    attention_mask: torch.Tensor
    """bool [B, S], True on real tokens."""
    masked_lm_positions: torch.Tensor
    """int64 [P], index of each masked token in the flattened [B * S]."""
    masked_lm_ids: torch.Tensor
    """int64 [P], the pieces before masking."""
    next_sentence_label: torch.Tensor
    """int64 [B], 0 true next (or in order), 1 random (or swapped), `NO_PAIR_LABEL` where the row is
    a single segment."""

    def to(self, device: torch.device) -> PretrainingBatch:
        """Return the batch on `device`; copies from pinned memory do not block."""
        return PretrainingBatch(*(tensor.to(device, non_blocking=True) for tensor in self))


class PackedBatch(NamedTuple):
    """One micro batch of masked sequences end to end, for attention without padding."""

    input_ids: torch.Tensor
    """int64 [T], pieces with masks applied."""
    token_type_ids: torch.Tensor
    """int64 [T], 0 for segment A, 1 for segment B."""
    position_ids: torch.Tensor
    """int64 [T], place of each token in its row."""
    cu_seqlens: torch.Tensor
    """int32 [B + 1], where each row begins, and T."""
    max_seqlen: int
    """Tokens of the longest row, or a bound on them."""
    masked_lm_positions: torch.Tensor
    """int64 [P], index of each masked token in [T]."""
    masked_lm_ids: torch.Tensor
    """int64 [P], the pieces before masking."""
    next_sentence_label: torch.Tensor
    """int64 [B], as in `PretrainingBatch`."""

    def to(self, device: torch.device) -> PackedBatch:
        """Return the batch on `device`; copies from pinned memory do not block."""

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
"""The two layouts that the model takes; the same rows give the same losses, up to rounding."""
