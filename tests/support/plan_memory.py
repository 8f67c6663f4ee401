"""Real DeepSpeed engines whose memory is counted, for comparison with what a plan says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bert_ds.batch import PretrainingBatch
from bert_ds.config.model import ModelConfig
from bert_ds.config.recipe import PhaseConfig
from bert_ds.distributed.world import World
from bert_ds.engine import TrainEngine
from bert_ds.model.bert.init import init_weights
from bert_ds.model.bert.pretraining import BertForPreTraining
from bert_ds.optim import Lamb, param_groups
from tests.support.live_bytes import LiveBytes

MODEL = ModelConfig(
    vocab_size=2048, hidden_size=128, num_hidden_layers=4, num_attention_heads=2,
    intermediate_size=512, max_position_embeddings=32, attention_probs_dropout_prob=0.0,
)  # fmt: skip
ROWS, LENGTH, PREDICTIONS, ACCUMULATION = 2, 32, 4, 2


@dataclass(frozen=True)
class Measured:
    """Bytes of tensors that one rank had.

    Attributes:
        between: between the micro batches of an update.
        update: at most in the update's last micro batch, with the exchange and LAMB's step.
    """

    between: int
    update: int


def phase_of(precision: str, zero: dict[str, Any], world_size: int) -> PhaseConfig:
    """The phase that `measure_updates` trains."""
    deepspeed: dict[str, Any] = {
        "train_batch_size": ROWS * ACCUMULATION * world_size,
        "train_micro_batch_size_per_gpu": ROWS,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "Lamb", "params": {"lr": 0.01}},
        "zero_optimization": zero,
    }
    if precision != "fp32":
        deepspeed[precision] = {"enabled": True}
    return PhaseConfig.model_validate(
        {
            "name": "phase1",
            "sequence_length": LENGTH,
            "max_predictions_per_seq": PREDICTIONS,
            "total_steps": 2,
            "schedule": {"kind": "constant"},
            "deepspeed": deepspeed,
        }
    )


def full_rows(
    rows: int, length: int, predictions: int, vocab_size: int, seed: int = 0
) -> PretrainingBatch:
    """A padded micro batch without padding."""
    generator = torch.Generator().manual_seed(seed)
    places = [torch.randperm(length, generator=generator)[:predictions] for _ in range(rows)]
    starts = [row * length for row in range(rows)]
    return PretrainingBatch(
        input_ids=torch.randint(vocab_size, (rows, length), generator=generator),
        token_type_ids=torch.zeros(rows, length, dtype=torch.long),
        attention_mask=torch.ones(rows, length, dtype=torch.bool),
        masked_lm_positions=torch.cat([p + s for p, s in zip(places, starts, strict=True)]),
        masked_lm_ids=torch.randint(vocab_size, (rows * predictions,), generator=generator),
        next_sentence_label=torch.zeros(rows, dtype=torch.long),
    )


def measure_updates(world: World, cases: Sequence[tuple[str, dict[str, Any]]]) -> list[Measured]:
    """Two updates of each case, (precision, `zero_optimization`); the second one is measured."""
    return [_measure(world, *case) for case in cases]


def _measure(world: World, precision: str, zero: dict[str, Any]) -> Measured:
    batch = full_rows(ROWS, LENGTH, PREDICTIONS, MODEL.vocab_size)
    phase = phase_of(precision, zero, world.world_size)
    config = phase.deepspeed.for_engine(phase.plan_batch(world.world_size))
    config["gradient_clipping"] = 1.0
    with LiveBytes() as live:
        model = BertForPreTraining(MODEL)
        init_weights(model, seed=1)
        optimizer = Lamb(param_groups(model, 0.01), lr=0.01)
        engine = TrainEngine(model, optimizer, config, world)
        for _ in range(2):
            engine.micro_step(batch, {"mlm": 1, "nsp": 1}, is_last=False)
            between = live.now
            live.reset_peak()
            engine.micro_step(batch, {"mlm": 1, "nsp": 1}, is_last=True)
        engine.destroy()
    return Measured(between, live.peak)
