"""The registry of counts by `model.architecture`, without torch: `bert-ds plan` reads it.

`bert_ds.model.family` lists what a new family provides.
"""

from __future__ import annotations

from bert_ds.config.model import ModelConfig
from bert_ds.model.bert.flops import pretraining_flops
from bert_ds.model.bert.memory import micro_batch_memory
from bert_ds.model.bert.size import largest_parameter, num_parameters
from bert_ds.model.family import FamilyShape

BERT = FamilyShape(num_parameters, largest_parameter, pretraining_flops, micro_batch_memory)

SHAPES = {"bert": BERT}


def shape_of(config: ModelConfig) -> FamilyShape:
    """Return the counts of the family that a network belongs to."""
    return SHAPES[config.architecture]
