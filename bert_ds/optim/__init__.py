"""LAMB with exact trust ratios, its parameter groups, and the learning-rate schedules.

`rule` is what an optimizer computes, `layout` where its tensors lie, `kernels` how a device
computes it; `optimizer` brings the three together.
"""

from bert_ds.config.optimizer import LambConfig
from bert_ds.config.schedule import ScheduleConfig
from bert_ds.optim.lamb import Lamb
from bert_ds.optim.param_groups import param_groups
from bert_ds.optim.schedule import learning_rate_at

__all__ = [
    "Lamb",
    "LambConfig",
    "ScheduleConfig",
    "learning_rate_at",
    "param_groups",
]
