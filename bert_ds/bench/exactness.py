"""`bert-ds bench exactness`: shows what one trust ratio per shard does to a model, on real text.

One process trains the same model several times, in turn update by update, on the same rows: with
per-tensor LAMB, and for each number of ranks with LAMB over ZeRO's flat shards, with exact ratios
and with the one ratio per shard of a stock LAMB. The shards are cut as ZeRO 1 and 2 cut them; an
engine is not needed, since the arithmetic alone makes the difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bert_ds.bench.shards import FlatShards, flat_shards
from bert_ds.config.recipe import RunConfig
from bert_ds.data.stream import TrainStream
from bert_ds.model.families import PretrainingModel
from bert_ds.objectives import PRETRAINING
from bert_ds.optim import Lamb, LambConfig, learning_rate_at, param_groups
from bert_ds.seeding import seed_dropout
from bert_ds.train import setup


@dataclass(frozen=True)
class Trajectory:
    """The course of one training."""

    ranks: int
    """Ranks over which the weights are sharded; 0 for whole tensors."""
    is_exact: bool
    """Whether trust ratios are those of whole parameters."""
    losses: tuple[float, ...]
    """Loss of each update's forward pass, nats."""
    errors: tuple[float, ...]
    """Distance from the per-tensor weights after each update, divided by how far those have moved
    from the start."""
    ratios: dict[str, float]
    """Trust ratio of each decayed parameter in the last update; with one ratio per shard the mean
    over the parameter's elements."""

    @property
    def label(self) -> str:
        """Name in tables and plots."""
        if not self.ranks:
            return "per tensor"
        kind = "exact" if self.is_exact else "one ratio a shard"
        return f"{kind}, {self.ranks} rank{'s' if self.ranks > 1 else ''}"


@dataclass(frozen=True)
class ExactnessBench:
    """All trajectories of one model."""

    recipe: str
    """Name of the recipe."""
    num_updates: int
    """Updates of each trajectory."""
    trajectories: tuple[Trajectory, ...]
    """The trajectories; the per-tensor one is the first."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


class _Runner:
    """One training in progress."""

    def __init__(self, config: RunConfig, lamb: LambConfig, ranks: int, is_exact: bool) -> None:
        self.ranks, self.is_exact = ranks, is_exact
        self.model = setup.build_model(config, torch.device("cpu"))
        self.losses: list[float] = []
        self.errors: list[float] = []
        groups = param_groups(self.model, lamb.weight_decay)
        self.names = [name for group in groups for name in group["names"]]
        self.is_decayed = set(groups[0]["names"]) if groups[0]["weight_decay"] else set()
        self._wholes = dict(self.model.named_parameters())
        phase = config.phases[0]
        self._clip = phase.deepspeed.gradient_clipping
        self._shards: FlatShards | None = None
        if not ranks:
            self.optimizer = Lamb(groups, **lamb.arguments)
            return
        self._shards = flat_shards(groups, ranks, torch.device("cpu"))
        self._shards.copy_from(self._wholes, to_gradients=False)
        if is_exact:
            self.optimizer = Lamb(groups, **lamb.arguments)
            self.optimizer.bind(self._shards.layout)
        else:
            stock = [{"params": [], "weight_decay": group["weight_decay"]} for group in groups]
            for group, flats in zip(stock, self._shards.by_group, strict=True):
                group["params"] = list(flats)
            self.optimizer = Lamb(stock, **lamb.arguments)
        for group, flats in zip(self.optimizer.param_groups, self._shards.by_group, strict=True):
            group["params"] = list(flats)

    def update(self, forward: Callable[[PretrainingModel], torch.Tensor], lr: float) -> None:
        """Apply one update; `forward` computes the loss of a model."""
        self.model.zero_grad()
        loss = forward(self.model)
        torch.autograd.backward(loss)
        self.losses.append(float(loss.detach()))
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._clip or math.inf)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        if self._shards is not None:
            gradients = {name: self._wholes[name].grad for name in self.names}
            self._shards.copy_from(
                {name: g for name, g in gradients.items() if g is not None}, to_gradients=True
            )
        self.optimizer.step()
        if self._shards is not None:
            self._shards.copy_to(self._wholes)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return weights by name, without key biases, which only rounding moves."""
        return {n: p.detach() for n, p in self._wholes.items() if not n.endswith("key.bias")}

    def ratios(self) -> dict[str, float]:
        """Return the trust ratios for `Trajectory.ratios`."""
        last = self.optimizer.last_trust_ratios()
        if self._shards is None or self.is_exact:
            return {name: ratio for name, ratio in last.items() if name in self.is_decayed}
        by_flat = {
            id(flat): last[f"{index}.{place}"]
            for index, group in enumerate(self.optimizer.param_groups)
            for place, flat in enumerate(group["params"])
        }
        layout, sums = self._shards.layout, dict.fromkeys(self.names, 0.0)
        for shard in layout.shards:
            for fragment in shard.fragments:
                share = fragment.numel / layout.shapes[fragment.parameter].numel()
                sums[layout.names[fragment.parameter]] += share * by_flat[id(shard.tensor)]
        return {name: ratio for name, ratio in sums.items() if name in self.is_decayed}


def bench_exactness(
    config: RunConfig, data: Path, ranks: Sequence[int], num_updates: int
) -> ExactnessBench:
    """Train all trajectories, update by update.

    Args:
        config: settings of a run, whose first phase is trained, with its schedule stretched over
            `num_updates`.
        data: the folder that holds the datasets.
        ranks: numbers of ranks to shard over.
        num_updates: updates of each trajectory.

    Raises:
        DataError: the dataset is missing or does not fit.
    """
    phase = config.phases[0]
    opened = setup.open_phase_data(config, data, [phase])[0]
    batch = phase.plan_batch(1)
    updates = TrainStream(setup.stream_spec(config, opened, batch, rank=0)).updates(0)
    lamb = phase.deepspeed.optimizer
    reference = _Runner(config, lamb, 0, True)
    others = [_Runner(config, lamb, count, exact) for count in ranks for exact in (True, False)]
    start = {name: weight.clone() for name, weight in reference.weights().items()}
    for step in range(num_updates):
        update = next(updates)
        lr = learning_rate_at(phase.schedule, lamb.lr, step, num_updates)

        def loss_of(model: PretrainingModel, update: Any = update) -> torch.Tensor:
            total, num_answers = torch.zeros(()), PRETRAINING.count(update.micro_batches)
            for rows, place in zip(update.micro_batches, update.micro_positions, strict=True):
                seed_dropout(config.seed, 0, place)
                total = total + PRETRAINING.loss_of(model(rows), num_answers)
            return total

        for runner in (reference, *others):
            runner.update(loss_of, lr)
        for runner in (reference, *others):
            runner.errors.append(_error(runner.weights(), reference.weights(), start))
    updates.close()
    return ExactnessBench(
        config.recipe,
        num_updates,
        tuple(
            Trajectory(r.ranks, r.is_exact, tuple(r.losses), tuple(r.errors), r.ratios())
            for r in (reference, *others)
        ),
    )


def as_text(bench: ExactnessBench) -> str:
    """Return the result as a table."""
    reference = bench.trajectories[0]
    lines = [
        f"{bench.recipe}, {bench.num_updates} updates; error: distance from the per-tensor weights "
        "over their way",
        "",
        f"{'LAMB':30}{'error':>10}{'worst ratio off by':>20}{'last 10 losses':>16}",
    ]
    for each in bench.trajectories:
        pairs = [(ratio, each.ratios[name]) for name, ratio in reference.ratios.items()]
        worst = max((max(a / b, b / a) for a, b in pairs if a and b), default=1.0)
        tail = each.losses[-10:]
        lines.append(
            f"{each.label:30}{each.errors[-1]:10.1e}{f'factor {worst:.3g}':>20}"
            f"{sum(tail) / len(tail):16.3f}"
        )
    return "\n".join(lines)


def _error(
    found: dict[str, torch.Tensor],
    expected: dict[str, torch.Tensor],
    start: dict[str, torch.Tensor],
) -> float:
    off = way = 0.0
    for name, weight in expected.items():
        off += float((found[name] - weight).double().square().sum())
        way += float((weight - start[name]).double().square().sum())
    return math.sqrt(off / way) if way else 0.0
