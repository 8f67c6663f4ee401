"""The `torch.optim.Optimizer` that applies a rule to whole parameters or to shards of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias, overload

import torch

from bert_ds.errors import ConfigError
from bert_ds.optim.kernels import Choice, choose_kernel
from bert_ds.optim.kernels.base import ApplyUpdate, FlatTensors, Kernel, StepInputs
from bert_ds.optim.layout import Fragment, ShardLayout
from bert_ds.optim.norms import sum_of_squares
from bert_ds.optim.rule import ELEMENTS, GRADIENT, MOMENTS, NUM_SUMS, UPDATE, WEIGHT, Rule

log = logging.getLogger(__name__)

Params: TypeAlias = Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]]


class _Alike(NamedTuple):
    """What tensors must share to be updated by one call of a kernel."""

    group_index: int
    """Number of the parameter group, which holds the settings."""
    step: int
    """Number of the update, from 1."""
    device: torch.device
    """Device that they lie on."""
    dtype: torch.dtype
    """Type of the weights."""


class RuleOptimizer(torch.optim.Optimizer):
    """The base of all optimizers of this package; a subclass names a rule and its settings.

    State of a tensor: `step` (int, updates it has had), `exp_avg` (m) and `exp_avg_sq` (v), in
    its shape and dtype. A step reads nothing from a GPU, so the host never waits for it.

    There is always a layout. Until `bind` it is the one of whole parameters, each a tensor of its
    own, so that a step has one way for both.
    """

    rule: ClassVar[type[Rule]]
    """The formulae."""

    _layout = ShardLayout((), (), (), None, is_sharded=False)  # before there are groups

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        """Take over parameters or groups.

        Args:
            params: Parameters, or groups as `bert_ds.optim.param_groups` makes them.
            defaults: Settings of groups that do not have their own: `lr`, `kernel`,
                `max_grad_norm`, and what the rule reads.
        """
        self._lay_out(self._layout)
        self._choices: dict[tuple[torch.device, torch.dtype], Choice] = {}
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as `torch.optim.Optimizer` defines it.

        Raises:
            ConfigError: A value of the group is out of its range, one that all groups share
                (`kernel`, `max_grad_norm`) is not theirs, or its `names` are not one a parameter.
        """
        title, values = self.rule.title, {**self.defaults, **param_group}
        for setting in ("kernel", "max_grad_norm"):
            if values[setting] != self.defaults[setting]:
                raise ConfigError(
                    f"{title}'s {setting} is one for all groups ({self.defaults[setting]}), and a "
                    f"group asks for {values[setting]}; give it to the optimizer"
                )
        if fault := self.rule.fault_of(values):
            raise ConfigError(f"{title}'s {fault}")
        super().add_param_group(param_group)
        if not self._layout.is_sharded:
            self._lay_out_whole_parameters()

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and pickles hold.

        Raises:
            ConfigError: It is bound: a copy would know neither the engine's tensors nor its ranks.
        """
        if self._layout.is_sharded:
            raise ConfigError(
                f"a bound {self.rule.title} cannot be copied or pickled; copy its state_dict()"
            )
        return super().__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore from pickle or `load_state_dict`, without what the last step left to report."""
        super().__setstate__(state)
        self.__dict__.setdefault("_choices", {})
        for group in self.param_groups:
            for name, value in self.defaults.items():  # of a state saved before it was there
                group.setdefault(name, value)
        self._lay_out(self._layout)
        if not self._layout.is_sharded:
            self._lay_out_whole_parameters()

    def _lay_out_whole_parameters(self) -> None:
        for index, group in enumerate(self.param_groups):
            numbers = range(len(group["params"]))
            names = group.setdefault("names", [f"{index}.{number}" for number in numbers])
            if len(names) != len(numbers):
                raise ConfigError(
                    f"group {index} of {self.rule.title} has {len(names)} names for "
                    f"{len(numbers)} parameters; give one name a parameter, in their order"
                )
        self._lay_out(ShardLayout.of_whole_parameters(self.param_groups))

    def _lay_out(self, layout: ShardLayout) -> None:
        self._layout = layout
        self._last = _LastStep()
        self._members: dict[tuple[str, ...], torch.Tensor] = {}

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
            ConfigError: The groups hold other tensors than those of the layout, for example
                because an engine has flattened them: factors by tensor would be wrong. Or a tensor
                is neither float32 nor float64, or its gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        tensors = self._flat_tensors()
        # Other ranks wait for this one, also where nothing of it is stepped.
        if tensors or self._layout.is_sharded:
            self._update(tensors)
        return loss

    def bind(self, layout: ShardLayout) -> None:
        """Adopt the layout of an engine that has replaced the parameters by flat shards.

        Call it once, before the first step; every later step adds up sums over the layout's ranks.

        Args:
            layout: Layout of all tensors that the engine will step; names as in the groups'
                `names`.

        Raises:
            ConfigError: A parameter of the groups is not in the layout, or `max_grad_norm` is on,
                which clips by this rank's gradients alone.
        """
        if self.defaults["max_grad_norm"] > 0.0:
            raise ConfigError(
                "max_grad_norm is for unsharded use; under ZeRO set the engine's gradient_clipping"
            )
        named = {name for group in self.param_groups for name in group["names"]}
        if named != set(layout.names):
            odd = sorted(named ^ set(layout.names))
            raise ConfigError(
                f"optimizer and engine differ in their parameters: {odd[:3]}; make the groups with "
                "bert_ds.optim.param_groups, or give each group the `names` of its parameters"
            )
        self._lay_out(layout)

    @property
    def layout(self) -> ShardLayout:
        """The places of all parameters; `is_sharded` once the optimizer is bound."""
        return self._layout

    def use_kernel(self, kernel: Kernel, device: torch.device, dtype: torch.dtype) -> None:
        """Compute later steps of tensors of a device and dtype by a kernel of your own.

        Args:
            kernel: The kernel.
            device: Device of the tensors.
            dtype: Type of the weights.
        """
        self._choices[device, dtype] = Choice(kernel, "given by the caller")

    @property
    def kernel_choices(self) -> tuple[Choice, ...]:
        """The kernels that the last steps used and why; empty before the first step."""
        return tuple(self._choices.values())

    def last_trust_ratios(self) -> dict[str, float]:
        """Return each parameter's factor r in the last step, by name; one read of the device.

        Parameters of groups without `names` are called by their place, `group.position`. Empty
        before the first step.
        """
        if self._last.ratios is None:
            return {}
        return dict(zip(self._layout.names, self._last.ratios.tolist(), strict=True))

    def last_norms(self) -> LastNorms | None:
        """Return norms and ratios of the last step, still on the device; None before the first.

        All ranks have the same. A parameter that the step did not cover keeps its former values.
        """
        if self._last.sums is None or self._last.ratios is None:
            return None
        names, sums = self._layout.names, self._last.sums
        exempt: set[str] = set()
        for group in self.param_groups:
            if self.rule.at(group, 1).is_exempt:
                exempt.update(group["names"])
        return LastNorms(
            names=names,
            is_exempt=tuple(name in exempt for name in names),
            weight_norms=sums[WEIGHT].sqrt(),
            update_norms=sums[UPDATE].sqrt(),
            grad_norms=sums[GRADIENT].sqrt(),
            trust_ratios=self._last.ratios,
        )

    def last_grad_norm(self) -> torch.Tensor | None:
        """Return the global gradient norm of the last step before clipping, a float64 scalar.

        It lies on the device. None before the first step and where `max_grad_norm` is off.
        """
        return self._last.grad_norm

    def _flat_tensors(self) -> dict[_Alike, list[FlatTensors]]:
        """Flatten every tensor that has a gradient, and count its step."""
        found: dict[_Alike, list[FlatTensors]] = {}
        states = []
        for index, group in enumerate(self.param_groups):
            for tensor in group["params"]:
                fragments = self._fragments_of(tensor)
                if tensor.grad is None:
                    continue
                state = self.state[tensor]
                if not state:
                    state["step"] = 0
                    state.update({moment: torch.zeros_like(tensor) for moment in MOMENTS})
                alike = _Alike(index, state["step"] + 1, tensor.device, tensor.dtype)
                may_overwrite = self._layout.is_sharded  # an engine sets it again; users read it
                flat = FlatTensors.of(
                    tensor, state, fragments, may_overwrite_gradient=may_overwrite
                )
                found.setdefault(alike, []).append(flat)
                states.append(state)
        for state in states:  # all of them are in order
            state["step"] += 1
        return found

    def _fragments_of(self, tensor: torch.Tensor) -> tuple[Fragment, ...]:
        shard = self._layout.shard_of(tensor)
        if shard is None:
            raise ConfigError(
                f"{self.rule.title} was given a tensor of shape {tuple(tensor.shape)} that is not "
                "in its layout: an engine has put flat tensors or shards in place of parameters, "
                "and factors by tensor would be wrong; bind the optimizer to the engine's layout "
                "after that, or use ZeRO stage 0 in float32"
            )
        if tensor.dtype not in (torch.float32, torch.float64):
            names = [self._layout.names[each.parameter] for each in shard.fragments[:1]]
            raise ConfigError(
                f"{self.rule.title} needs float32 parameters, and {', '.join(names)} is "
                f"{tensor.dtype}: small updates would round to nothing; give it float32 master "
                "weights"
            )
        return shard.fragments

    def _update(self, tensors: dict[_Alike, list[FlatTensors]]) -> None:
        """Apply one update to all tensors. All ranks call it together where they hold shards.

        The order is a protocol, which must not change. A rank knows ||w|| and ||u|| of its own
        fragments alone, so every kernel first advances its moments and adds to the sums; then the
        ranks add those up, exactly once, also a rank that steps nothing, because the others wait
        for it; only then are factors known and weights moved. All ranks compute all factors from
        the same sums, in float64, and so move their parts of a parameter by the same multiple.
        """
        layout = self._layout
        device = layout.shards[0].tensor.device
        divisor = self._clip_divisor(tensors)
        num_rows, num_parameters = NUM_SUMS + self.rule.num_others, len(layout.names)
        sums = torch.zeros(num_rows, num_parameters, dtype=torch.float64, device=device)
        begun: list[tuple[_Alike, Rule, ApplyUpdate]] = []
        for alike, flats in tensors.items():
            rule = self.rule.at(self.param_groups[alike.group_index], alike.step)
            local_divisor = None if divisor is None else divisor.to(alike.device)
            inputs = StepInputs(tuple(flats), rule, layout.numels, local_divisor)
            local_sums = torch.zeros_like(sums, device=alike.device)
            begun.append((alike, rule, self._kernel_for(alike, rule).begin(inputs, local_sums)))
            sums += local_sums.to(device)
        layout.all_reduce_sum(sums)
        ratios = torch.ones(num_parameters, dtype=torch.float64, device=device)
        for alike, rule, apply_update in begun:
            found = rule.factors(sums)
            apply_update((rule.step_size * found).to(alike.device))
            ratios = torch.where(self._members_of(alike.group_index, device), found, ratios)
        self._last.keep(sums, ratios)

    def _members_of(self, group_index: int, device: torch.device) -> torch.Tensor:
        """Return which parameters are in a group, on whatever rank their elements lie: bool [P].

        By names and not by number: ZeRO steps with one of the groups alone in the list.
        """
        names = tuple(self.param_groups[group_index]["names"])
        if names not in self._members:
            chosen = set(names)
            flags = [name in chosen for name in self._layout.names]
            self._members[names] = torch.tensor(flags, device=device)
        return self._members[names]

    def _clip_divisor(self, tensors: dict[_Alike, list[FlatTensors]]) -> torch.Tensor | None:
        """Return max(1, ||g||_global / max_grad_norm), float64 scalar, or None where it is off."""
        max_grad_norm = max(group["max_grad_norm"] for group in self.param_groups)
        if max_grad_norm == 0.0 or self._layout.is_sharded:
            return None
        device = self._layout.shards[0].tensor.device
        gradients = [flat.gradient for flats in tensors.values() for flat in flats]
        squares = [sum_of_squares(gradient).to(device) for gradient in gradients]
        self._last.grad_norm = torch.stack(squares).sum().sqrt()
        divisor: torch.Tensor = (self._last.grad_norm / max_grad_norm).clamp(min=1.0)
        return divisor

    def _kernel_for(self, alike: _Alike, rule: Rule) -> Kernel:
        place = alike.device, alike.dtype
        if place not in self._choices:
            choice = choose_kernel(self.defaults["kernel"], *place, rule.fused_kernels)
            title, name = rule.title, choice.kernel.name
            log.info("%s on %s: kernel %s (%s)", title, place[0], name, choice.reason)
            self._choices[place] = choice
        return self._choices[place].kernel


class LastNorms(NamedTuple):
    """The measurements of the last step for P parameters; tensors are float64 on the device."""

    names: tuple[str, ...]
    """Names of the parameters."""
    is_exempt: tuple[bool, ...]
    """[P], whether r is 1 by definition."""
    weight_norms: torch.Tensor
    """[P], ||w|| before the step."""
    update_norms: torch.Tensor
    """[P], ||u||; the step moved w by lr * r * ||u||."""
    grad_norms: torch.Tensor
    """[P], ||g|| of the gradient that entered the moments: unscaled and clipped."""
    trust_ratios: torch.Tensor
    """[P], the factor r."""


@dataclass
class _LastStep:
    """What is kept of the last step, by parameter, and the gradient norm before clipping."""

    sums: torch.Tensor | None = None
    """Sums by parameter over all ranks, float64 [rows, P]."""
    ratios: torch.Tensor | None = None
    """Factor of each parameter, float64 [P]."""
    grad_norm: torch.Tensor | None = None
    """Global gradient norm before clipping, float64 scalar."""

    def keep(self, sums: torch.Tensor, ratios: torch.Tensor) -> None:
        """Keep the results of a step, which may have covered some parameters only."""
        if self.sums is not None and self.ratios is not None:
            is_stepped = sums[ELEMENTS] > 0
            sums = torch.where(is_stepped, sums, self.sums)
            ratios = torch.where(is_stepped, ratios, self.ratios)
        self.sums, self.ratios = sums, ratios
