"""Objectives, what models are trained for: one file each, known by name nowhere else.

A new objective is a file that makes an `Objective`, and its entry in `PRETRAINING`.
"""

from bert_ds.objectives.interface import (
    Encoded,
    Guess,
    Head,
    Heads,
    NumAnswers,
    Objective,
    Sums,
    Term,
    TermSums,
)
from bert_ds.objectives.masked_lm import MASKED_LM
from bert_ds.objectives.objective_set import ObjectiveSet
from bert_ds.objectives.pairs import PAIRS

PRETRAINING = ObjectiveSet((MASKED_LM, PAIRS))
"""What every recipe trains for."""

__all__ = [
    "PRETRAINING",
    "Encoded",
    "Guess",
    "Head",
    "Heads",
    "NumAnswers",
    "Objective",
    "ObjectiveSet",
    "Sums",
    "Term",
    "TermSums",
]
