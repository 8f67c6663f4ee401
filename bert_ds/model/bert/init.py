"""Initial weights: truncated normal as in Google's BERT, reproducible tensor by tensor.

google-research/bert, modeling.py, `create_initializer`: `tf.truncated_normal_initializer(stddev)`,
a normal of that standard deviation redrawn outside two of them.
"""

from __future__ import annotations

import torch
from torch import nn

from bert_ds.model.bert.pretraining import BertForPreTraining
from bert_ds.seeding import weight_seed

CUT = 2.0
"""Where the normal is cut, in standard deviations before the cut."""


@torch.no_grad()
def init_weights(model: BertForPreTraining, seed: int) -> None:
    """Set all parameters in place: weights truncated normal, biases 0, LayerNorm weights 1.

    Each tensor is drawn in float32 on the CPU from a generator of its own, keyed by `seed` and the
    tensor's name. So its values depend on nothing else: not on the order of construction, on other
    tensors, on the device, or on the global random state, which is neither read nor moved. The
    embedding of [PAD] is drawn like any other row.

    Args:
        model: The model to fill. Its parameters must be whole, not yet partitioned by ZeRO 3.
        seed: Any integer.
    """
    std = model.config.initializer_range
    layer_norm_weights = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.LayerNorm)
    }
    for name, parameter in model.named_parameters():
        if id(parameter) in layer_norm_weights:
            parameter.fill_(1.0)
        elif name.endswith("bias"):
            parameter.zero_()
        else:
            drawn = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
            nn.init.trunc_normal_(
                drawn, std=std, a=-CUT * std, b=CUT * std, generator=_generator(seed, name)
            )
            parameter.copy_(drawn)


def _generator(seed: int, name: str) -> torch.Generator:
    """Return a CPU generator whose state is a function of (seed, name)."""
    return torch.Generator(device="cpu").manual_seed(weight_seed(seed, name))
