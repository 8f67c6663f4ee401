"""Pairs of segments: whether segment B follows segment A.

That is next sentence prediction (Devlin et al. 2018, 3.1) or sentence order prediction (Lan et al.
2019, arXiv:1909.11942), as the labels of the dataset were made.

Rows of a single segment have no label: they add nothing to the sums, and nothing to the count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bert_ds.batch import NO_PAIR_LABEL
from bert_ds.objectives.interface import (
    Encoded,
    Heads,
    NumAnswers,
    Objective,
    Sums,
    Term,
    TermSums,
)

if TYPE_CHECKING:
    from bert_ds.batch import Batch


def _count(batch: Batch) -> NumAnswers:
    return {_TERM.name: int((batch.next_sentence_label != NO_PAIR_LABEL).sum())}


def _compute(heads: Heads, encoded: Encoded, batch: Batch) -> Sums:
    from torch.nn import functional as F

    from bert_ds.objectives.cross_entropy import num_correct

    scores, labels = heads.score_pairs(encoded.first), batch.next_sentence_label
    loss_sum = F.cross_entropy(
        scores.float(), labels, ignore_index=NO_PAIR_LABEL, reduction="sum"
    )  # without a labelled row, sum and gradients are zero
    return {_TERM.name: TermSums(loss_sum, num_correct(scores, labels))}


_TERM = Term(
    name="nsp",
    label="NSP",
    answer="sequence",
    answers_label="Sequences",
    head="pairs",
    held_out=("accuracy",),
)

PAIRS = Objective(
    terms=(_TERM,),
    is_in=lambda manifest: manifest.pair_label_name is not None,
    count=_count,
    compute=_compute,
)
