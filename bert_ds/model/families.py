"""The registry of families: the networks that `model.architecture` names.

`bert_ds.model.family` lists what a new family provides; the last step is its entry here.
"""

from __future__ import annotations

import json
from pathlib import Path

from bert_ds.config.model import ModelConfig
from bert_ds.model.bert.hf import (
    EXPORTED_FILES,
    export_pretraining,
    import_pretraining,
    read_hf_config,
)
from bert_ds.model.bert.init import init_weights
from bert_ds.model.bert.pretraining import BertForPreTraining
from bert_ds.model.family import Family

PretrainingModel = BertForPreTraining
"""The class of all networks; with a second family, the union of the families' classes."""

BERT = Family(
    build=BertForPreTraining,
    init_weights=init_weights,
    read_hf_config=read_hf_config,
    import_hf=import_pretraining,
    export_hf=export_pretraining,
    exported_files=EXPORTED_FILES,
)

FAMILIES = {"bert": BERT}
"""Families by the value of `model.architecture`, which is Hugging Face's `model_type`."""


def family_of(config: ModelConfig) -> Family:
    """Return the family that a network belongs to."""
    return FAMILIES[config.architecture]


def family_of_folder(folder: Path) -> Family:
    """Return the family of the network in a Hugging Face folder, by `model_type` in config.json.

    A folder without a known type gets BERT's, whose `read_hf_config` reports what is wrong.
    """
    try:
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, KeyError, TypeError):
        return BERT
    return FAMILIES.get(kind, BERT) if isinstance(kind, str) else BERT
