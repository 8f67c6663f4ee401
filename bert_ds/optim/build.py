"""From the `optimizer` section of a DeepSpeed JSON to our LAMB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_ds.config.optimizer import lamb_config
from bert_ds.optim.lamb import Lamb, LambParams


def build_lamb(
    params: LambParams, ds_optimizer_section: Mapping[str, Any], *, max_grad_norm: float = 0.0
) -> Lamb:
    """Build the optimizer that a DeepSpeed JSON asks for.

    Args:
        params: Parameters or groups; those of `param_groups(model, config.weight_decay)` with
            `config = lamb_config(ds_optimizer_section)`. A group's own `weight_decay` wins over
            the section's.
        ds_optimizer_section: The `optimizer` section of the JSON.
        max_grad_norm: Global gradient norm to clip to, for an engine that does not clip by
            itself; 0 for none.

    Raises:
        ConfigError: As `lamb_config`.
    """
    config = lamb_config(ds_optimizer_section)
    return Lamb(
        params,
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        bias_correction=config.bias_correction,
        use_nvlamb=config.use_nvlamb,
        grad_averaging=config.grad_averaging,
        trust_ratio_bounds=config.trust_ratio_bounds,
        max_grad_norm=max_grad_norm,
        variant=config.variant,
        kernel=config.kernel,
    )
