"""Masked language modelling: which piece stood at a masked position (Devlin et al. 2018, 3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bert_ds.objectives.interface import (
    Encoded,
    Guess,
    Heads,
    NumAnswers,
    Objective,
    Sums,
    Term,
    TermSums,
)

if TYPE_CHECKING:
    import torch

    from bert_ds.batch import Batch


def _count(batch: Batch) -> NumAnswers:
    return {_TERM.name: len(batch.masked_lm_ids)}


def _compute(heads: Heads, encoded: Encoded, batch: Batch) -> Sums:
    """Score the vocabulary at the masked positions alone, about a seventh of all."""
    from bert_ds.objectives.cross_entropy import cross_entropy_sum_in_place, num_correct

    states = encoded.tokens.index_select(0, batch.masked_lm_positions)
    scores, size = heads.score_vocabulary(states), heads.vocab_size
    return {
        _TERM.name: TermSums(
            cross_entropy_sum_in_place(scores, batch.masked_lm_ids, size),
            num_correct(scores[:, :size], batch.masked_lm_ids),
        )
    }


def _histogram(batch: Batch, vocab_size: int) -> torch.Tensor:
    """Return how often each piece is masked, int64 [V]."""
    return batch.masked_lm_ids.bincount(minlength=vocab_size)


_TERM = Term(
    name="mlm",
    label="MLM",
    answer="prediction",
    answers_label="Masked positions",
    head="vocabulary",
    held_out=("loss", "accuracy"),
    held_out_count="predictions",
    guess=Guess("unigram", "unigram guess", _histogram),
)

MASKED_LM = Objective(terms=(_TERM,), is_in=lambda manifest: True, count=_count, compute=_compute)
