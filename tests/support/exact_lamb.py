"""Twenty updates of a tiny BERT: by DeepSpeed in ranks, and by torch alone in one process."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from bert_ds.batch import PretrainingBatch
from bert_ds.config.model import ModelConfig
from bert_ds.distributed.world import World
from bert_ds.engine import TrainEngine, import_deepspeed
from bert_ds.model.bert.init import init_weights
from bert_ds.model.bert.pretraining import BertForPreTraining
from bert_ds.optim import Lamb, param_groups
from tests.support.naive import naive_ratios

NUM_STEPS = 20
NUM_ROWS, LENGTH, PREDICTIONS = 12, 16, 3
NUM_ANSWERS = {"mlm": NUM_ROWS * PREDICTIONS, "nsp": NUM_ROWS}
MAX_GRAD_NORM = 0.5
"""Active in every update: the norms are 0.7 to 3."""
LOSS_SCALE = 1024.0
MODEL = ModelConfig(
    vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=64, max_position_embeddings=LENGTH, hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)  # fmt: skip
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Case:
    """One way to lay out the same training.

    Attributes:
        zero: DeepSpeed's `zero_optimization`.
        accumulation: micro batches of an update.
        lamb: options of the optimizer.
        precision: fp32, bf16 or fp16.
        is_naive: one trust ratio a shard.
        with_empty: the model has a parameter without elements, too.
    """

    zero: dict[str, Any]
    accumulation: int = 1
    lamb: dict[str, Any] = field(default_factory=dict)
    precision: str = "fp32"
    is_naive: bool = False
    with_empty: bool = False


@dataclass(frozen=True)
class Outcome:
    """Float32 weights and last trust ratios by parameter name, and each update's gradient norm."""

    weights: dict[str, np.ndarray[Any, np.dtype[np.float32]]]
    ratios: dict[str, float]
    grad_norms: list[float]


class WithEmptyParameter(BertForPreTraining):
    """The model with a parameter of no elements."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.empty = torch.nn.Parameter(torch.zeros(0, 4))


def make_model(*, with_empty: bool = False) -> BertForPreTraining:
    """The same initial model everywhere."""
    model = (WithEmptyParameter if with_empty else BertForPreTraining)(MODEL)
    init_weights(model, seed=3)
    return model


def global_batch(step: int) -> PretrainingBatch:
    """The rows of one update."""
    generator = torch.Generator().manual_seed(100 + step)

    def draw(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, generator=generator)

    places = torch.stack([torch.randperm(LENGTH, generator=generator) for _ in range(NUM_ROWS)])
    chosen = places[:, :PREDICTIONS] + LENGTH * torch.arange(NUM_ROWS)[:, None]
    return PretrainingBatch(
        input_ids=5 + draw(59, NUM_ROWS, LENGTH),
        token_type_ids=draw(2, NUM_ROWS, LENGTH),
        attention_mask=torch.ones(NUM_ROWS, LENGTH, dtype=torch.bool),
        masked_lm_positions=chosen.reshape(-1),
        masked_lm_ids=5 + draw(59, NUM_ROWS * PREDICTIONS),
        next_sentence_label=draw(2, NUM_ROWS),
    )


def rows_of(batch: PretrainingBatch, begin: int, end: int) -> PretrainingBatch:
    """Rows [begin, end) as a batch of their own."""
    predictions = slice(begin * PREDICTIONS, end * PREDICTIONS)
    return PretrainingBatch(
        batch.input_ids[begin:end],
        batch.token_type_ids[begin:end],
        batch.attention_mask[begin:end],
        batch.masked_lm_positions[predictions] - begin * LENGTH,
        batch.masked_lm_ids[predictions],
        batch.next_sentence_label[begin:end],
    )


def train_in_ranks(world: World, cases: Sequence[Case]) -> list[Outcome]:
    """Each case in turn with DeepSpeed; the outcome is whole on rank 0."""
    import_deepspeed().accelerator.get_accelerator().is_fp16_supported = lambda: True
    return [_train_case(world, case) for case in cases]


def _train_case(world: World, case: Case) -> Outcome:
    model = make_model(with_empty=case.with_empty)
    is_sharded = case.zero.get("stage", 0) > 0
    lamb = Lamb(
        param_groups(model, 0.01),
        lr=0.01,
        max_grad_norm=0.0 if is_sharded else MAX_GRAD_NORM,
        **case.lamb,
    )
    micro = NUM_ROWS // (world.world_size * case.accumulation)
    config: dict[str, Any] = {
        "train_batch_size": NUM_ROWS,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": case.accumulation,
        "gradient_clipping": MAX_GRAD_NORM if is_sharded else 0.0,
        "steps_per_print": None,
        "zero_optimization": case.zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    if case.precision != "fp32":
        config[case.precision] = {"enabled": True}
    if case.precision == "fp16":
        config["fp16"]["loss_scale"] = LOSS_SCALE
    with naive_ratios() if case.is_naive else contextlib.nullcontext():
        engine = TrainEngine(model, lamb, config, world)
        _check_nothing_has_moved(engine, case)
        grad_norms = []
        first = world.rank * micro * case.accumulation
        for step in range(NUM_STEPS):
            batch = global_batch(step)
            for number in range(case.accumulation):
                begin = first + number * micro
                rows = rows_of(batch, begin, begin + micro)
                is_last = number == case.accumulation - 1
                engine.micro_step(rows, NUM_ANSWERS, is_last=is_last)
            norm = engine.grad_norm()
            assert norm is not None
            grad_norms.append(float(norm))
        weights = {name: w.detach().numpy().copy() for name, w in engine.weights().items()}
        outcome = Outcome(weights, lamb.last_trust_ratios(), grad_norms)
        engine.destroy()
    return outcome


def _check_nothing_has_moved(engine: TrainEngine, case: Case) -> None:
    """An engine must not step at its construction, on whatever gradients."""
    assert not any(engine.optimizer.state.values())
    start = dict(make_model().to(DTYPES[case.precision]).named_parameters())
    for name, weight in engine.weights().items():
        if name in start:
            assert torch.equal(weight.detach(), start[name].detach().float()), name


def train_in_one_process(
    lamb: dict[str, Any] | None = None, precision: str = "fp32", num_parts: int = 1
) -> Outcome:
    """The reference: torch and the plain LAMB over whole tensors, no engine, no ranks.

    Args:
        lamb: options of the optimizer.
        precision: of the model; the optimizer's weights are float32 copies of its rounded ones.
        num_parts: pieces of the batch whose half-precision gradients are averaged, as many ranks
            do it.
    """
    model = make_model().to(DTYPES[precision])
    masters = {
        n: torch.nn.Parameter(p.detach().float().clone()) for n, p in model.named_parameters()
    }
    scale = LOSS_SCALE if precision == "fp16" else 1.0
    groups = param_groups(model, 0.01)
    for group in groups:
        group["params"] = [masters[name] for name in group["names"]]
    optimizer = Lamb(groups, lr=0.01, kernel="plain", **(lamb or {}))
    grad_norms = []
    size = NUM_ROWS // num_parts
    for step in range(NUM_STEPS):
        batch = global_batch(step)
        averaged = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        for part in range(num_parts):
            model.zero_grad()
            output = model(rows_of(batch, part * size, (part + 1) * size))
            loss = output["mlm"].loss_sum / NUM_ANSWERS["mlm"] + output["nsp"].loss_sum / NUM_ROWS
            (loss * num_parts * scale).backward()
            for name, parameter in model.named_parameters():
                averaged[name] += parameter.grad / num_parts
        gradients = {name: g.float() / scale for name, g in averaged.items()}
        norm = torch.stack([g.double().norm() for g in gradients.values()]).norm()
        grad_norms.append(float(norm))
        # DeepSpeed adds 1e-6 before it divides
        divisor = max(1.0, (float(norm) + 1e-6 / scale) / MAX_GRAD_NORM)
        for name, parameter in masters.items():
            parameter.grad = gradients[name] / divisor
        optimizer.step()
        for name, parameter in model.named_parameters():
            parameter.data.copy_(masters[name].detach())
    weights = {name: parameter.detach().numpy() for name, parameter in masters.items()}
    return Outcome(weights, optimizer.last_trust_ratios(), grad_norms)


def movement_error(found: Outcome, reference: Outcome) -> float:
    """Distance of the weights from the reference's over the reference's way from the start.

    Key biases are left out: their gradient is zero but for rounding.
    """
    off, way = 0.0, 0.0
    for name, start in make_model().named_parameters():
        if not name.endswith("key.bias"):
            end = reference.weights[name].astype(np.float64)
            off += float(np.square(found.weights[name] - end).sum())
            way += float(np.square(end - start.detach().numpy()).sum())
    return math.sqrt(off / way)


def ratio_error(found: Outcome, reference: Outcome) -> float:
    """Largest relative difference of a trust ratio, key biases left out."""
    return max(
        abs(found.ratios[name] / ratio - 1.0)
        for name, ratio in reference.ratios.items()
        if not name.endswith("key.bias")
    )
