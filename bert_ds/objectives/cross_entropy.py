"""Cross entropy over a vocabulary without a second copy of its scores, and counts of right answers.

What makes this hard: the gradient is written over the scores themselves. That is right since
nothing but the backward pass reads them after the forward pass, and torch raises an error where
something does (`save_for_backward` checks the version). Correct answers must be counted before the
backward pass.

Legend: P answers, V classes, C columns of the scores, V or more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_CHUNK_ELEMENTS = 1 << 23
"""Scores that are worked on in float32 at a time: 32 MiB."""


def cross_entropy_sum_in_place(
    logits: torch.Tensor, labels: torch.Tensor, vocab_size: int | None = None
) -> torch.Tensor:
    """Return the sum over P of -log softmax(logits)[label], not divided by anything.

    Softmax and sum are float32 (float64 for such logits), some rows at a time. The gradient is
    written over the logits: they are the largest tensor of a step, and with a copy for softmax, one
    for its gradient and one in float32 they would stand four times in memory. So the logits hold
    something else after the backward pass; a second one raises torch's error about that.

    Args:
        logits: [P, C] of any floating dtype.
        labels: int64 [P], each in [0, V).
        vocab_size: V; columns from V on are left out and get the gradient 0. None for C.

    Returns:
        float32 or float64 scalar, 0 where P is 0.
    """
    loss: torch.Tensor = _LossSum.apply(logits, labels, vocab_size)  # type: ignore[no-untyped-call]  # apply has no types
    return loss


class _LossSum(torch.autograd.Function):
    """The sum, and its gradient: d loss / d logits = softmax(logits) - one hot(label)."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, labels: torch.Tensor, vocab_size: int | None
    ) -> torch.Tensor:
        ctx.vocab_size = vocab_size
        dtype = _working_dtype(logits)
        log_sums = torch.empty(len(logits), dtype=dtype, device=logits.device)
        for rows in _chunks(logits):
            log_sums[rows] = logits[rows, :vocab_size].to(dtype).logsumexp(dim=1)
        ctx.save_for_backward(logits, labels, log_sums)
        of_labels = logits.gather(1, labels[:, None]).squeeze(1).to(dtype)
        return (log_sums - of_labels).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        logits, labels, log_sums = ctx.saved_tensors
        (gradient,) = gradients
        of_pieces = logits[:, : ctx.vocab_size]
        for rows in _chunks(logits):
            part = of_pieces[rows].to(log_sums.dtype)  # the logits themselves where they are of it
            part.sub_(log_sums[rows, None]).exp_().mul_(gradient)
            part[torch.arange(len(part), device=part.device), labels[rows]] -= gradient
            if part.dtype != logits.dtype:
                of_pieces[rows] = part.to(logits.dtype)
        logits[:, of_pieces.shape[1] :] = 0
        return logits, None, None


def _working_dtype(logits: torch.Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def _chunks(logits: torch.Tensor) -> Iterator[slice]:
    """Return slices of the rows, some rows at a time."""
    num_rows = max(1, _CHUNK_ELEMENTS // max(1, logits.shape[1]))
    return (slice(first, first + num_rows) for first in range(0, len(logits), num_rows))


def num_correct(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return how often the label has the highest score, int64 scalar; a negative one never has."""
    return (logits.detach().argmax(dim=-1) == labels).sum()
