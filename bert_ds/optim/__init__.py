"""LAMB with exact trust ratios, its parameter groups, and the learning-rate schedules."""

from bert_ds.optim.build import LambConfig, build_lamb, lamb_config
from bert_ds.optim.lamb import Lamb
from bert_ds.optim.param_groups import param_groups
from bert_ds.optim.schedule import learning_rate_at

__all__ = [
    "Lamb",
    "LambConfig",
    "build_lamb",
    "lamb_config",
    "learning_rate_at",
    "param_groups",
]
