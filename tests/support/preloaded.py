"""What the server of `forking` imports once, so that none of its processes has to.

The first optimizer makes torch import its compiler, and ZeRO makes DeepSpeed import an optimizer
that torch compiles: together twice as long as torch itself.
"""

import gc

import torch._dynamo

from bert_ds.engine import import_deepspeed
from bert_ds.train import pretrain, setup

import_deepspeed()

import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: E402

__all__ = ["deepspeed", "pretrain", "setup", "torch"]

gc.freeze()  # ZeRO 3 collects garbage for every engine: half a second over all these modules
