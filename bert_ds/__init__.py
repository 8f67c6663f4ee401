"""Pretraining of BERT on DeepSpeed clusters: configuration, model, optimizer, data, training."""

__version__ = "0.1.0"
