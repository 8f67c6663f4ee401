"""LAMB with the trust ratio of every whole parameter, sharded or not; formulae in `lamb_rule`."""

from __future__ import annotations

from bert_ds.config.optimizer import KernelName, LambVariant
from bert_ds.optim.lamb_rule import LambRule
from bert_ds.optim.optimizer import Params, RuleOptimizer


class Lamb(RuleOptimizer):
    """LAMB with exact trust ratios, of whole parameters or, once bound, of shards of them.

    A step under a sharding engine has these phases:

    1. Every rank advances the moments of its shards and sums the squares of w, u and g by fragment
       of a parameter, with float64 totals.
    2. One all-reduce of float64 [4, num_params] adds those up, and the elements counted, over the
       data-parallel group. It is the only communication; nothing is gathered.
    3. Every rank scales u of its fragments by the trust ratio of their whole parameter and moves
       the weights.

    Without an engine, or under one that does not shard, there is no communication.

    A gradient that is not finite is not caught here, which would need a read of the device: NaN
    spreads to the moments, the weights and the trust ratio of its tensor (and of all tensors
    through the global norm, where `max_grad_norm` is on). The training loop watches the loss and
    stops on it.

    Args:
        params: Parameters, or groups as `bert_ds.optim.param_groups` makes them. A group's
            `names` are those that `last_trust_ratios` returns and that `bind` needs.
        lr: Learning rate.
        betas: Decay rates of the first and second moment, each in [0, 1).
        eps: Added to the denominator, after the root.
        weight_decay: Decoupled decay, inside the trust ratio.
        bias_correction: Whether the moments are corrected for their start from zero.
        use_nvlamb: Whether parameters without weight decay get a trust ratio of their own.
        grad_averaging: Whether the gradient enters m with weight 1 - beta1, or with 1.
        trust_ratio_bounds: Lowest and highest trust ratio. Ratios that are 1 by definition (a norm
            of 0, no weight decay) are not clamped. None leaves all as they are.
        max_grad_norm: Global gradient norm above which all gradients are scaled down, over all
            groups. 0 turns it off: an engine that clips by itself (DeepSpeed's
            `gradient_clipping`) must not be joined by a second clipping here.
        variant: `apex` or `deepspeed`, whose LAMB it is; `bert_ds.optim.lamb_rule` has both.
        kernel: What computes a step (`auto`, `plain`, `cpu`, `triton`, `apex`); `auto` takes the
            fastest that works where the tensors lie.

    Raises:
        ConfigError: A value is out of its range.

    Example:
        >>> import torch
        >>> from bert_ds.optim import Lamb, param_groups
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = Lamb(param_groups(model, weight_decay=0.01), lr=2e-3)
        >>> model(torch.ones(1, 4)).sum().backward()
        >>> optimizer.step()
        >>> sorted(optimizer.last_trust_ratios())
        ['bias', 'weight']

        Under DeepSpeed's ZeRO 1, 2 or 3 (with `zero_allow_untested_optimizer: true`, and
        `zero_force_ds_cpu_optimizer: false` for offload) two more lines make it exact:

            engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
            optimizer.bind(bert_ds.optim.zero_layout.read_layout(engine.optimizer, model))

    References:
        You et al. 2020, Large Batch Optimization for Deep Learning: Training BERT in 76 minutes,
        arXiv:1904.00962, algorithm 2.
    """

    rule = LambRule

    def __init__(
        self,
        params: Params,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        bias_correction: bool = True,
        use_nvlamb: bool = False,
        grad_averaging: bool = True,
        trust_ratio_bounds: tuple[float, float] | None = None,
        max_grad_norm: float = 0.0,
        variant: LambVariant = "apex",
        kernel: KernelName = "auto",
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "use_nvlamb": use_nvlamb,
            "grad_averaging": grad_averaging,
            "trust_ratio_bounds": trust_ratio_bounds,
            "max_grad_norm": max_grad_norm,
            "variant": variant,
            "kernel": kernel,
        }
        super().__init__(params, defaults)
