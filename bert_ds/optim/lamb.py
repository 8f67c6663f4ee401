"""LAMB with the trust ratio of every whole parameter, sharded or not.

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

With `variant="deepspeed"` it is LAMB as DeepSpeed's FusedLamb computes it (DeepSpeed 0.19.8,
csrc/lamb/fused_lamb_cuda_kernel.cu), which differs in three places, so that learning rates do not
transfer between the two:

    u  = m / (sqrt(v) + eps) + weight_decay w     moments are never corrected inside u
    w <- w - lr (sqrt(1 - beta2^t) / (1 - beta1^t)) r u      the factor is 1 without bias_correction
    r is taken, and clamped to `trust_ratio_bounds`, for parameters without weight decay too

(Of DeepSpeed's options `eps_inside_sqrt` and `amsgrad` are not offered; its clipping by
`max_grad_norm` is the engine's `gradient_clipping` here.)

A step under a sharding engine, after `bind`, has these phases: moments and update directions,
element by element; squares of w, u and g by fragment of a parameter; one all-reduce of float64
[4, number of parameters]; each parameter's ratio to its fragments. Who computes them is chosen by
`kernel` (see `bert_ds.optim.kernels`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, overload

import torch

from bert_ds.errors import ConfigError
from bert_ds.optim.checks import Variant, check_choices, check_group, check_ranges, names_of
from bert_ds.optim.coefficients import coefficients_of, is_exempt
from bert_ds.optim.kernels import Choice, choose_kernel
from bert_ds.optim.kernels.base import (
    ELEMENTS,
    GRADIENT,
    UPDATE,
    WEIGHT,
    Batch,
    Coefficients,
    Finish,
    Kernel,
    Slab,
)
from bert_ds.optim.kernels.slab import make_slab
from bert_ds.optim.layout import Fragment, ShardLayout, all_reduce_sum
from bert_ds.optim.norms import sum_of_squares

log = logging.getLogger(__name__)

LambParams: TypeAlias = Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]]


class Lamb(torch.optim.Optimizer):
    """LAMB with exact trust ratios, of whole parameters or, once bound, of shards of them.

    State of a tensor: `step` (int, updates it has had), `exp_avg` (m) and `exp_avg_sq` (v), in
    its shape and dtype. A step reads nothing from a GPU, so the host never waits for it.

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
        variant: Whose LAMB it is, `apex` or `deepspeed`; see the module's docstring.
        kernel: What computes a step, one of KERNEL_NAMES; `auto` takes the fastest that works.
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
        variant: Variant = "apex",
        kernel: str = "auto",
    ) -> None:
        check_ranges(lr, betas, eps, weight_decay, trust_ratio_bounds, max_grad_norm)
        check_choices(variant, kernel, use_nvlamb, grad_averaging)
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
        self._layout: ShardLayout | None = None
        self._members: dict[tuple[str, ...], torch.Tensor] = {}
        self._choices: dict[tuple[torch.device, torch.dtype], Choice] = {}
        self._masks: dict[tuple[int, ...], torch.Tensor] = {}
        self._group_numels: list[tuple[int, ...]] = []
        self._is_standard = True
        self._own_kernel: Choice | None = None
        self._last = _LastStep()
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as `torch.optim.Optimizer` defines it.

        Raises:
            ConfigError: a value of the group is out of its range, or one that all groups share
                (`kernel`, `max_grad_norm`) is not theirs.
        """
        values = {**self.defaults, **param_group}
        for shared in ("kernel", "max_grad_norm"):
            if values[shared] != self.defaults[shared]:
                raise ConfigError(
                    f"LAMB's {shared} is one for all groups ({self.defaults[shared]}), and a group "
                    f"asks for {values[shared]}"
                )
        check_ranges(
            values["lr"], values["betas"], values["eps"], values["weight_decay"],
            values["trust_ratio_bounds"], values["max_grad_norm"],
        )  # fmt: skip
        check_choices(
            values["variant"], values["kernel"], values["use_nvlamb"], values["grad_averaging"]
        )
        super().add_param_group(param_group)
        self._note_groups()

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles.

        Raises:
            ConfigError: it is bound: a copy would know neither the engine's tensors nor its ranks.
        """
        if self._layout is not None:
            raise ConfigError("a bound LAMB cannot be copied or pickled; copy its state_dict()")
        return super().__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore from pickle or `load_state_dict`, without what the last step left to report."""
        super().__setstate__(state)
        self._layout = getattr(self, "_layout", None)
        self._members, self._masks = {}, {}
        self._own_kernel = getattr(self, "_own_kernel", None)
        self._choices = {}
        self._last = _LastStep.of(self._layout)
        for group in self.param_groups:
            for name, value in self.defaults.items():  # of a state saved before it was there
                group.setdefault(name, value)
        self._note_groups()

    def _note_groups(self) -> None:
        """Keep what is asked of the groups when an engine has changed them."""
        if getattr(self, "_layout", None) is None:
            self._group_numels = [
                tuple(parameter.numel() for parameter in group["params"])
                for group in self.param_groups
            ]
        self._is_standard = all(
            group["variant"] == "apex" and group["bias_correction"] and group["grad_averaging"]
            for group in self.param_groups
        )

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
        targets = list(self._whole_targets() if self._layout is None else self._shard_targets())
        # Other ranks wait for this one, also where nothing of it is stepped.
        if targets or self._layout is not None:
            self._update(targets)
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
        if any("names" not in group for group in self.param_groups):
            raise ConfigError(
                "binding needs the names of the parameters: make the groups with "
                "bert_ds.optim.param_groups, or give each group its `names`"
            )
        named = {name for group in self.param_groups for name in group["names"]}
        if named != set(layout.names):
            odd = sorted(named ^ set(layout.names))
            raise ConfigError(f"optimizer and engine differ in their parameters: {odd[:3]}")
        self._layout = layout
        self._members = {}
        self._last = _LastStep.of(layout)

    @property
    def layout(self) -> ShardLayout | None:
        """The layout of a bound optimizer, or None where parameters are whole."""
        return self._layout

    def use_kernel(self, kernel: Kernel, reason: str) -> None:
        """Compute all later steps by a kernel of your own, in place of the chosen one.

        Args:
            kernel: see `bert_ds.optim.kernels.base`; it must suit the tensors' device and dtype.
            reason: for the log.
        """
        self._own_kernel = Choice(kernel, reason)
        self._choices = {}

    @property
    def kernel_choices(self) -> tuple[Choice, ...]:
        """The kernels that the last steps used and why; empty before the first step."""
        return tuple(self._choices.values())

    def last_trust_ratios(self) -> dict[str, float]:
        """The trust ratio r of each parameter in the last step, by name; one read of the device.

        Parameters of groups without `names` are called by their place, `group.position`. Empty
        before the first step. The multiplier of the step is lr * r.
        """
        if self._last.ratios is None:
            return {}
        return dict(zip(self._last.names, self._last.ratios.tolist(), strict=True))

    def last_norms(self) -> LastNorms | None:
        """Norms and ratios of the last step, still on the device; None before the first step.

        All ranks have the same. A parameter that the step did not cover keeps its former values.
        """
        if self._last.sums is None or self._last.ratios is None:
            return None
        sums = self._last.sums
        exempt = {
            name
            for index, group in enumerate(self.param_groups)
            if is_exempt(group)
            for name in names_of(index, group)
        }
        return LastNorms(
            self._last.names,
            tuple(name in exempt for name in self._last.names),
            sums[WEIGHT].sqrt(),
            sums[UPDATE].sqrt(),
            sums[GRADIENT].sqrt(),
            self._last.ratios,
        )

    def last_grad_norm(self) -> torch.Tensor | None:
        """Global gradient norm of the last step before clipping, float64 scalar on the device.

        None before the first step and where `max_grad_norm` is off.
        """
        return self._last.grad_norm

    def _whole_targets(self) -> Iterator[_Target]:
        """Every parameter that has a gradient, each a slab of its own; sets the names.

        Parameters are numbered whether they have a gradient or not, so that a number stays.
        """
        names: list[str] = []
        numels: list[int] = []
        found = []
        for index, group in enumerate(self.param_groups):
            check_group(index, group, self._group_numels[index])
            for name, parameter in zip(names_of(index, group), group["params"], strict=True):
                if parameter.grad is not None:
                    fragment = Fragment(len(names), 0, 0, parameter.numel())
                    found.append(_Target(parameter, (fragment,), index))
                names.append(name)
                numels.append(parameter.numel())
        if self._last.names != tuple(names) or self._last.numels != tuple(numels):
            self._last = _LastStep(tuple(names), tuple(numels))
        yield from found

    def _shard_targets(self) -> Iterator[_Target]:
        """The flat tensors that the groups hold now; all ranks step the same ones together."""
        assert self._layout is not None
        for index, group in enumerate(self.param_groups):
            for flat in group["params"]:
                shard = self._layout.shard_of(flat)
                if shard is None:
                    raise ConfigError(
                        "LAMB was given a tensor that is not in its layout: the engine has changed "
                        "its tensors since bind()"
                    )
                if flat.grad is not None:
                    yield _Target(flat, shard.fragments, index)

    def _update(self, targets: list[_Target]) -> None:
        """One step over all targets."""
        layout, last = self._layout, self._last
        device = layout.shards[0].tensor.device if layout else targets[0].tensor.device
        sums = torch.zeros(4, len(last.names), dtype=torch.float64, device=device)
        prepared = list(self._slabs_by_coefficients(targets))
        divisor = self._clip_divisor(targets)
        begun: list[tuple[Batch, Finish, torch.Tensor]] = []
        for group_index, slabs, coefficients in prepared:
            place = slabs[0].weight.device
            local_divisor = None if divisor is None else divisor.to(place)
            batch = Batch(tuple(slabs), coefficients, last.numels, local_divisor)
            local_sums = torch.zeros_like(sums, device=place)
            finish = self._kernel_for(batch).begin(batch, local_sums)
            sums += local_sums.to(device)
            begun.append((batch, finish, self._members_of(group_index, batch, device)))
        if layout is not None:
            all_reduce_sum(sums, layout.group)
        is_stepped = sums[ELEMENTS] > 0
        ratios = torch.ones(len(last.names), dtype=torch.float64, device=device)
        for batch, finish, is_member in begun:
            found = batch.coefficients.ratios(sums)
            finish((batch.coefficients.step_size * found).to(batch.slabs[0].weight.device))
            ratios = torch.where(is_member, found, ratios)
        last.keep(sums, ratios, is_stepped)

    def _slabs_by_coefficients(
        self, targets: list[_Target]
    ) -> Iterator[tuple[int, list[Slab], Coefficients]]:
        """Flatten the targets, count their steps, and put together what can be done in one go."""
        batches: dict[tuple[int, int, torch.device, torch.dtype], list[Slab]] = {}
        for tensor, fragments, group_index in targets:
            state = self.state[tensor]
            if not state:
                state["step"] = 0
                state["exp_avg"] = torch.zeros_like(tensor)
                state["exp_avg_sq"] = torch.zeros_like(tensor)
            key = (group_index, state["step"] + 1, tensor.device, tensor.dtype)
            batches.setdefault(key, []).append(
                make_slab(tensor, state, fragments, is_gradient_spare=self._layout is not None)
            )
        for tensor, *_ in targets:  # all of them are in order
            self.state[tensor]["step"] += 1
        for key, slabs in batches.items():
            group_index, step, *_ = key
            yield group_index, slabs, coefficients_of(self.param_groups[group_index], step)

    def _members_of(self, group_index: int, batch: Batch, device: torch.device) -> torch.Tensor:
        """Which parameters a batch updates, on whatever rank their elements lie: bool [P]."""
        if self._layout is not None:
            # By names and not by number: ZeRO steps with one of the groups alone in the list.
            names = tuple(self.param_groups[group_index]["names"])
            if names not in self._members:
                chosen = set(names)
                flags = [name in chosen for name in self._layout.names]
                self._members[names] = torch.tensor(flags, device=device)
            return self._members[names]
        numbers = tuple(f.parameter for slab in batch.slabs for f in slab.fragments)
        key = (len(batch.numels), *numbers)
        if key in self._masks:
            return self._masks[key]
        is_member = torch.zeros(len(batch.numels), dtype=torch.bool)
        is_member[list(numbers)] = True
        self._masks[key] = is_member.to(device)
        return self._masks[key]

    def _clip_divisor(self, targets: list[_Target]) -> torch.Tensor | None:
        """max(1, ||g||_global / max_grad_norm) as a float64 scalar, or None where it is off."""
        max_grad_norm = max(group["max_grad_norm"] for group in self.param_groups)
        if max_grad_norm == 0.0 or self._layout is not None:
            return None
        device = targets[0].tensor.device
        gradients = [t.tensor.grad for t in targets if t.tensor.grad is not None]
        squares = [sum_of_squares(gradient).to(device) for gradient in gradients]
        self._last.grad_norm = torch.stack(squares).sum().sqrt()
        divisor: torch.Tensor = (self._last.grad_norm / max_grad_norm).clamp(min=1.0)
        return divisor

    def _kernel_for(self, batch: Batch) -> Kernel:
        weight = batch.slabs[0].weight
        key = (weight.device, weight.dtype)
        if key not in self._choices:
            choice = self._own_kernel or choose_kernel(
                self.defaults["kernel"], *key, is_standard_lamb=self._is_standard
            )
            log.info("LAMB on %s: kernel %s (%s)", key[0], choice.kernel.name, choice.reason)
            self._choices[key] = choice
        return self._choices[key].kernel


class LastNorms(NamedTuple):
    """What the last step measured of each parameter. P parameters, float64, on the device.

    Attributes:
        names: of the parameters.
        is_exempt: [P], whether r is 1 because there is no decay.
        weight_norms: [P], ||w|| before the step.
        update_norms: [P], ||u||; the step moved w by lr * r * ||u||.
        grad_norms: [P], ||g|| as the moments took it: unscaled and clipped.
        trust_ratios: [P], r.
    """

    names: tuple[str, ...]
    is_exempt: tuple[bool, ...]
    weight_norms: torch.Tensor
    update_norms: torch.Tensor
    grad_norms: torch.Tensor
    trust_ratios: torch.Tensor


class _Target(NamedTuple):
    """A tensor to update, what lies in it, and the number of its group."""

    tensor: torch.Tensor
    fragments: tuple[Fragment, ...]
    group_index: int


@dataclass
class _LastStep:
    """What is kept of the last step, by parameter, and the gradient norm before clipping."""

    names: tuple[str, ...] = ()
    numels: tuple[int, ...] = ()
    sums: torch.Tensor | None = None
    ratios: torch.Tensor | None = None
    grad_norm: torch.Tensor | None = None

    @classmethod
    def of(cls, layout: ShardLayout | None) -> _LastStep:
        """Nothing yet, of a layout's parameters where there is one."""
        if layout is None:
            return cls()
        return cls(layout.names, tuple(shape.numel() for shape in layout.shapes))

    def keep(self, sums: torch.Tensor, ratios: torch.Tensor, is_stepped: torch.Tensor) -> None:
        """Take over what a step found out; it may have covered some parameters only."""
        if self.sums is None or self.ratios is None:
            self.sums, self.ratios = sums, ratios
        else:
            self.sums = torch.where(is_stepped, sums, self.sums)
            self.ratios = torch.where(is_stepped, ratios, self.ratios)
