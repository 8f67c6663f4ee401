"""BERT in plain PyTorch: embeddings, encoder, pretraining heads, initial weights, Hugging Face.

Knows no ranks.
"""

from bert_ds.model.encoder import BertModel
from bert_ds.model.hf import (
    ImportedModel,
    export_pretraining,
    import_pretraining,
    read_hf_config,
)
from bert_ds.model.init import init_weights
from bert_ds.model.pretraining import BertForPreTraining

__all__ = [
    "BertForPreTraining",
    "BertModel",
    "ImportedModel",
    "export_pretraining",
    "import_pretraining",
    "init_weights",
    "read_hf_config",
]
