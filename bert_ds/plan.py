"""`bert-ds plan`: what a recipe means at a world size, without a GPU and without DeepSpeed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bert_ds.config.batch import plan_batch
from bert_ds.config.model import ModelConfig
from bert_ds.config.recipe import PhaseConfig, RunConfig
from bert_ds.metrics.flops import pretraining_flops


@dataclass(frozen=True)
class PhasePlan:
    """The arithmetic of one phase.

    Attributes:
        name: of the phase.
        sequence_length: tokens of the longest row.
        train_batch_size: sequences per update, all ranks.
        micro_batch_size: sequences per rank per forward.
        gradient_accumulation_steps: micro batches per update.
        total_steps: updates.
        sequences: rows consumed in the phase.
        tokens_at_most: tokens of full rows; shorter rows have fewer.
        flops_at_most: floating-point operations of full rows, forward and backward.
    """

    name: str
    sequence_length: int
    train_batch_size: int
    micro_batch_size: int
    gradient_accumulation_steps: int
    total_steps: int
    sequences: int
    tokens_at_most: int
    flops_at_most: int


def plan_run(config: RunConfig, world_size: int) -> list[PhasePlan]:
    """Batch arithmetic and work of every phase.

    Raises:
        ConfigError: the batch sizes of a phase do not divide.
    """
    plans = []
    for phase in config.phases:
        batch = plan_batch(phase.deepspeed, world_size, phase.name)
        sequences = batch.train_batch_size * phase.total_steps
        length = phase.sequence_length
        plans.append(
            PhasePlan(
                name=phase.name,
                sequence_length=length,
                train_batch_size=batch.train_batch_size,
                micro_batch_size=batch.micro_batch_size,
                gradient_accumulation_steps=batch.gradient_accumulation_steps,
                total_steps=phase.total_steps,
                sequences=sequences,
                tokens_at_most=sequences * length,
                flops_at_most=pretraining_flops(
                    config.model,
                    sum_of_lengths=sequences * length,
                    sum_of_squared_lengths=sequences * length**2,
                    num_predictions=sequences * phase.max_predictions_per_seq,
                    num_sequences=sequences,
                ),
            )
        )
    return plans


def num_parameters(model: ModelConfig) -> int:
    """Trainable parameters of the pretraining model."""
    h, inner = model.hidden_size, model.intermediate_size
    embeddings = (model.vocab_size + model.max_position_embeddings + model.type_vocab_size) * h
    layer = 4 * (h * h + h) + (h * inner + inner) + (inner * h + h) + 2 * 2 * h
    heads = (h * h + h) + (h * h + h) + 2 * h + model.vocab_size + (2 * h + 2)
    last_norm = 2 * h if model.layer_norm_position == "pre" else 0
    decoder = 0 if model.tie_word_embeddings else model.vocab_size * h
    return embeddings + 2 * h + model.num_hidden_layers * layer + last_norm + heads + decoder


def plan_as_json(config: RunConfig, world_size: int) -> dict[str, Any]:
    """The plan as plain values."""
    return {
        "recipe": config.recipe,
        "world_size": world_size,
        "num_parameters": num_parameters(config.model),
        "phases": [asdict(plan) for plan in plan_run(config, world_size)],
    }


def plan_as_text(config: RunConfig, world_size: int) -> str:
    """The plan as a table for people."""
    ranks = f"{world_size:,} rank{'s' if world_size > 1 else ''}"
    parameters = scaled(num_parameters(config.model), "parameters")
    lines = [f"{config.recipe}: {parameters}, {ranks}"]
    for plan in plan_run(config, world_size):
        lines += [
            f"{plan.name}, sequence length {plan.sequence_length}",
            f"  {plan.train_batch_size:,} sequences an update = micro batch "
            f"{plan.micro_batch_size:,} x accumulation {plan.gradient_accumulation_steps:,} x "
            f"{ranks}",
            f"  {plan.total_steps:,} updates, {plan.sequences:,} sequences, at most "
            f"{scaled(plan.tokens_at_most, 'tokens')} and {scaled(plan.flops_at_most, 'FLOP')}",
        ]
    return "\n".join(lines)


def passes_as_text(phase: PhaseConfig, folder: Path, num_rows: int) -> str:
    """How often a phase goes through its dataset."""
    passes = phase.total_steps * phase.deepspeed["train_batch_size"] / num_rows
    return f"{folder}: {num_rows:,} train rows, {passes:,.3g} passes in {phase.name}"


def scaled(number: float, unit: str) -> str:
    """A number with three digits and a prefix: 336 M parameters, 59 G tokens."""
    for prefix in ("", "k", "M", "G", "T", "P", "E"):
        if number < 999.5 or prefix == "E":
            return f"{number:.3g} {prefix}{' ' if prefix and len(unit) > 4 else ''}{unit}"
        number /= 1000
    raise AssertionError("the last prefix takes any number")
