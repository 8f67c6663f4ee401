"""From the settings of an optimizer to our LAMB."""

from __future__ import annotations

from bert_ds.config.optimizer import LambConfig
from bert_ds.optim.lamb import Lamb, LambParams


def build_lamb(params: LambParams, config: LambConfig, *, max_grad_norm: float = 0.0) -> Lamb:
    """Build the optimizer that a DeepSpeed JSON asks for.

    Args:
        params: parameters or groups, such as those of `param_groups(model, config.weight_decay)`.
            A group's own `weight_decay` wins over the settings'.
        config: settings.
        max_grad_norm: global gradient norm to clip to, for an engine that does not clip by
            itself; 0 for none.
    """
    named = config.model_dump(exclude={"max_coeff", "min_coeff"})
    bounds = config.trust_ratio_bounds
    return Lamb(params, **named, trust_ratio_bounds=bounds, max_grad_norm=max_grad_norm)
