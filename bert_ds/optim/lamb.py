"""LAMB, one tensor at a time: the plain reference that every faster version is tested against.

You et al. 2020, arXiv:1904.00962, as NVIDIA's apex computes it (apex, csrc/multi_tensor_lamb.cu).
For parameter w with gradient g at its update t = 1, 2, ...:

    g <- g / max(1, ||g||_global / max_grad_norm)                    if max_grad_norm > 0
    m <- beta1 m + beta3 g           beta3 = 1 - beta1, or 1 without grad_averaging
    v <- beta2 v + (1 - beta2) g^2
    u  = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay w
    r  = ||w|| / ||u||               trust ratio over the whole tensor
    w <- w - lr r u

r is 1 where either norm is 0, and for parameters without weight decay unless `use_nvlamb`.
Without `bias_correction` both denominators 1 - beta^t are 1.

Differs from DeepSpeed's FusedLamb, which leaves m and v uncorrected inside u, scales the step by
the bias correction instead, and clamps r for parameters without weight decay too: learning rates
do not transfer between the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

import torch

from bert_ds.errors import ConfigError
from bert_ds.optim.layout import ShardLayout, all_reduce_sum
from bert_ds.optim.norms import sum_of_squares

LambParams: TypeAlias = Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]]


class Lamb(torch.optim.Optimizer):
    """LAMB with exact trust ratios, for whole (unsharded) float32 parameters.

    State of a parameter: `step` (int, updates it has had), `exp_avg` (m) and `exp_avg_sq` (v), in
    its shape and dtype. A step reads nothing from the device, so it never makes the host wait.

    A gradient that is not finite is not caught here, which would need such a read: NaN spreads to
    the moments, the weights and the trust ratio of its tensor (and of all tensors through the
    global norm, where `max_grad_norm` is on). The training loop watches the loss and stops on it.

    Args:
        params: Parameters, or groups as `bert_ds.optim.param_groups` makes them. A group's
            `names` lets `last_trust_ratios` speak of names.
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

    Raises:
        ConfigError: A value is out of its range.
    """

    def __init__(
        self,
        params: LambParams,
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
    ) -> None:
        _check_ranges(lr, betas, eps, weight_decay, trust_ratio_bounds, max_grad_norm)
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
        }
        self._last_trust_ratios: dict[str, torch.Tensor] = {}
        self._last_grad_norm: torch.Tensor | None = None
        self._binding: _Binding | None = None
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore from pickle or `load_state_dict`, without what the last step left to report."""
        super().__setstate__(state)
        self._binding = getattr(self, "_binding", None)
        self._last_trust_ratios = {}
        self._last_grad_norm = None

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Apply one update to every parameter that has a gradient.

        Args:
            closure: Recomputes the loss and the gradients, as `torch.optim` defines it.

        Returns:
            What `closure` returned, or None.

        Raises:
            ConfigError: The groups do not hold whole float32 (or float64) parameters, for example
                because an engine has flattened them: trust ratios would be wrong.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._binding is not None:
            self._step_sharded(self._binding)
            return loss
        for index, group in enumerate(self.param_groups):
            _check_group(index, group)
        divisor = self._clip_divisor()
        ratios: dict[str, torch.Tensor] = {}
        for index, group in enumerate(self.param_groups):
            for name, parameter in zip(_names(index, group), group["params"], strict=True):
                if parameter.grad is not None:
                    gradient = parameter.grad if divisor is None else parameter.grad / divisor
                    ratios[name] = self._update(parameter, gradient, group)
        self._last_trust_ratios = ratios
        return loss

    def bind(self, layout: ShardLayout) -> None:
        """Tell the optimizer that its groups now hold flat shards, and where parameters lie.

        To be called once, after the engine has replaced the parameters and before the first step;
        every later step adds up norms over the layout's ranks.

        Args:
            layout: of all tensors that the engine will step; names as in the groups' `names`.

        Raises:
            ConfigError: a parameter of the groups is not in the layout, or `max_grad_norm` is on,
                which clips by this rank's gradients alone.
        """
        if self.defaults["max_grad_norm"] > 0.0:
            raise ConfigError(
                "max_grad_norm is for unsharded use; under ZeRO set the engine's gradient_clipping"
            )
        named = {name for group in self.param_groups for name in group["names"]}
        if named != set(layout.names):
            odd = sorted(named ^ set(layout.names))
            raise ConfigError(f"optimizer and engine differ in their parameters: {odd[:3]}")
        exempt = {
            name
            for group in self.param_groups
            if group["weight_decay"] == 0.0 and not group["use_nvlamb"]
            for name in group["names"]
        }
        device = layout.shards[0].tensor.device
        self._binding = _Binding(
            layout=layout,
            is_exempt=torch.tensor([name in exempt for name in layout.names], device=device),
            last_ratios=torch.ones(len(layout.names), dtype=torch.float64, device=device),
        )

    @property
    def layout(self) -> ShardLayout | None:
        """The layout of a bound optimizer, or None where parameters are whole."""
        return None if self._binding is None else self._binding.layout

    def _step_sharded(self, binding: _Binding) -> None:
        """One step on the flat tensors that the groups hold now; all ranks call it together.

        Phases: moments and update direction, element by element; squares of both by fragment; one
        all-reduce of float64 [2, number of parameters]; each parameter's ratio to its fragments.
        """
        layout, device = binding.layout, binding.last_ratios.device
        squares = torch.zeros(2, len(layout.names), dtype=torch.float64, device=device)
        pending = []
        for group in self.param_groups:
            for flat in group["params"]:
                shard = layout.shard_of(flat)
                if shard is None:
                    raise ConfigError(
                        "LAMB was given a tensor that is not in its layout: the engine has changed "
                        "its tensors since bind()"
                    )
                if flat.grad is None:
                    continue
                update = self._direction(flat, flat.grad, group)
                for fragment in shard.fragments:
                    squares[0, fragment.parameter] += sum_of_squares(fragment.of(flat))
                    squares[1, fragment.parameter] += sum_of_squares(fragment.of(update))
                pending.append((group, shard, update))
        all_reduce_sum(squares, layout.group)
        for group, shard, update in pending:
            ratios = _ratios(squares, binding.is_exempt, group)
            for fragment in shard.fragments:
                scaled = fragment.of(update).mul_(group["lr"] * ratios[fragment.parameter])
                fragment.of(shard.tensor).sub_(scaled)
            # A step may cover some parameters only (ZeRO steps group by group).
            is_stepped = squares.ne(0.0).any(dim=0)
            binding.last_ratios = torch.where(is_stepped, ratios, binding.last_ratios)

    def last_trust_ratios(self) -> dict[str, float]:
        """The trust ratio r of each parameter in the last step, by name; one read of the device.

        Parameters of groups without `names` are called by their place, `group.position`. Empty
        before the first step. The multiplier of the step is lr * r.
        """
        if self._binding is not None:
            names = self._binding.layout.names
            return dict(zip(names, self._binding.last_ratios.tolist(), strict=True))
        if not self._last_trust_ratios:
            return {}
        device = next(iter(self._last_trust_ratios.values())).device
        stacked = torch.stack([ratio.to(device) for ratio in self._last_trust_ratios.values()])
        return dict(zip(self._last_trust_ratios, stacked.tolist(), strict=True))

    def last_grad_norm(self) -> torch.Tensor | None:
        """Global gradient norm of the last step before clipping, float64 scalar on the device.

        None before the first step and where `max_grad_norm` is off.
        """
        return self._last_grad_norm

    def _clip_divisor(self) -> torch.Tensor | None:
        """max(1, ||g||_global / max_grad_norm) as a float64 scalar, or None where it is off."""
        max_grad_norm = self.defaults["max_grad_norm"]
        if max_grad_norm == 0.0:
            return None
        squares = [
            sum_of_squares(parameter.grad)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        if not squares:
            return None
        device = squares[0].device
        self._last_grad_norm = torch.stack([square.to(device) for square in squares]).sum().sqrt()
        divisor: torch.Tensor = (self._last_grad_norm / max_grad_norm).clamp(min=1.0)
        return divisor

    def _update(
        self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]
    ) -> torch.Tensor:
        """Updates one whole parameter in place; returns its trust ratio, float64 scalar."""
        update = self._direction(parameter, gradient, group)
        is_exempt = torch.tensor(
            group["weight_decay"] == 0.0 and not group["use_nvlamb"], device=parameter.device
        )
        squares = torch.stack([sum_of_squares(parameter), sum_of_squares(update)])
        ratio = _ratios(squares, is_exempt, group)
        parameter.sub_(update.mul_(group["lr"] * ratio))
        return ratio

    def _direction(
        self, tensor: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]
    ) -> torch.Tensor:
        """Advances the moments of a whole or flat tensor; returns u, in its shape."""
        beta1, beta2 = group["betas"]
        state = self.state[tensor]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(tensor)
            state["exp_avg_sq"] = torch.zeros_like(tensor)
        state["step"] += 1
        exp_avg, exp_avg_sq = state["exp_avg"], state["exp_avg_sq"]

        beta3 = 1.0 - beta1 if group["grad_averaging"] else 1.0
        exp_avg.mul_(beta1).add_(gradient, alpha=beta3)
        exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)

        correction1 = correction2 = 1.0
        if group["bias_correction"]:
            correction1 = 1.0 - beta1 ** state["step"]
            correction2 = 1.0 - beta2 ** state["step"]
        denominator = (exp_avg_sq / correction2).sqrt_().add_(group["eps"])
        update: torch.Tensor = (exp_avg / correction1).div_(denominator)
        return update.add_(tensor, alpha=group["weight_decay"])


@dataclass
class _Binding:
    """What a bound optimizer knows besides its groups.

    Attributes:
        layout: where parameters lie.
        is_exempt: bool [P], parameters whose ratio is 1 because they are not decayed.
        last_ratios: float64 [P], of each parameter's last step.
    """

    layout: ShardLayout
    is_exempt: torch.Tensor
    last_ratios: torch.Tensor


def _ratios(squares: torch.Tensor, is_exempt: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
    """||w|| / ||u||, or 1 where the module's docstring says so; NaN if either is NaN.

    Args:
        squares: float64 [2, ...], sums of squares of w and of u.
        is_exempt: bool [...], where the ratio is 1 because there is no decay.
        group: gives the bounds.

    Returns:
        float64 [...].
    """
    weight_norm, update_norm = squares.sqrt()
    ratio = weight_norm / update_norm
    if group["trust_ratio_bounds"] is not None:
        lowest, highest = group["trust_ratio_bounds"]
        ratio = ratio.clamp(lowest, highest)
    is_one = is_exempt | (weight_norm == 0.0) | (update_norm == 0.0)
    return torch.where(is_one, 1.0, ratio)


def _names(index: int, group: dict[str, Any]) -> list[str]:
    """The names of a group's parameters, or `group.position` where it carries none."""
    if "names" in group:
        return list(group["names"])
    return [f"{index}.{position}" for position in range(len(group["params"]))]


def _check_group(index: int, group: dict[str, Any]) -> None:
    """Refuse groups on which a per-tensor trust ratio would be meaningless or imprecise."""
    num_names, num_tensors = len(_names(index, group)), len(group["params"])
    if num_names != num_tensors:
        raise ConfigError(
            f"LAMB's group {index} was built from {num_names} named parameters and now holds "
            f"{num_tensors} tensors: the engine has flattened them, and one trust ratio over a "
            "flat tensor is wrong; use ZeRO stage 0 in float32."
        )
    for name, parameter in zip(_names(index, group), group["params"], strict=True):
        if parameter.dtype not in (torch.float32, torch.float64):
            raise ConfigError(
                f"LAMB needs float32 parameters, and {name} is {parameter.dtype}: small updates "
                "would round to nothing; give it float32 master weights."
            )


def _check_ranges(
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    trust_ratio_bounds: tuple[float, float] | None,
    max_grad_norm: float,
) -> None:
    rules = [
        ("lr", lr, 0.0 <= lr < math.inf, "finite and at least 0"),
        ("betas", betas, len(betas) == 2 and all(0.0 <= b < 1.0 for b in betas), "two in [0, 1)"),
        ("eps", eps, 0.0 <= eps < math.inf, "finite and at least 0"),
        ("weight_decay", weight_decay, 0.0 <= weight_decay < math.inf, "finite and at least 0"),
        ("max_grad_norm", max_grad_norm, 0.0 <= max_grad_norm < math.inf, "0 (off) or positive"),
    ]
    if trust_ratio_bounds is not None:
        lowest, highest = trust_ratio_bounds
        is_interval = 0.0 <= lowest <= highest
        rules.append(
            ("trust_ratio_bounds", trust_ratio_bounds, is_interval, "0 <= lowest <= highest")
        )
    for name, value, holds, rule in rules:
        if not holds:
            raise ConfigError(f"LAMB's {name} must be {rule}, not {value}.")
