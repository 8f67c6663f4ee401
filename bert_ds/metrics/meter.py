"""Turns the sums that stay on the device into one row of numbers per update.

Each rank collects records without reading the device. `flush` sums all of them over the ranks in
one all-reduce, reads the result once, and passes a row per update to the sinks of rank 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from bert_ds.errors import DivergedError
from bert_ds.metrics.norms import ParameterNorms, norm_columns
from bert_ds.metrics.throughput import Throughput
from bert_ds.objectives import PRETRAINING, NumAnswers

MetricsRow = dict[str, Any]


@dataclass(frozen=True)
class UpdateRecord:
    """One update as this rank saw it; counters and counts are those of all ranks."""

    global_step: int
    """Applied updates so far, this one included if it was applied."""
    skipped_steps: int
    """Skipped updates so far, this one included if it was skipped."""
    samples_seen: int
    """Sequences consumed, those of the update included."""
    tokens_seen: int
    """Real tokens consumed, those of the update included."""
    num_answers: NumAnswers
    """Answers of each of the objectives' terms in the update."""
    num_sequences: int
    """Sequences of the update."""
    num_tokens: int
    """Real tokens of the update."""
    num_squared_lengths: int
    """Sum of the squares of its sequences' lengths."""
    sums: torch.Tensor
    """This rank's sums, float64 on the device, in the order of `ObjectiveSet.flatten`."""
    was_applied: bool
    """Whether the update moved the weights."""
    learning_rate: float
    """Learning rate of the update."""
    grad_norm: torch.Tensor | None
    """Global norm before clipping, a scalar on the device; None if unknown."""
    loss_scale: float | None
    """Loss scale of fp16; None in other precisions."""
    norms: ParameterNorms | None
    """LAMB's norms by parameter; None if the update was skipped."""
    step_s: float
    """Seconds that the whole update took on the host."""
    data_wait_s: float
    """Seconds of `step_s` that were spent waiting for data."""


class Sink(Protocol):
    """Where finished rows go: a file, TensorBoard, the terminal."""

    def write_evaluation(self, row: MetricsRow) -> None:
        """Write the row of an evaluation during training."""

    def write(self, rows: Sequence[MetricsRow]) -> None:
        """Write the rows of one flush, in order."""

    def close(self) -> None:
        """Write what is pending; no more rows follow."""


class Meter:
    """Turns records into rows for one phase."""

    def __init__(
        self,
        phase: str,
        sum_over_ranks: Callable[[torch.Tensor], torch.Tensor],
        sinks: Sequence[Sink],
        *,
        norms_by_layer: bool = False,
        throughput: Throughput | None = None,
    ) -> None:
        """Begin without a record.

        Args:
            phase: name of the phase, for the rows.
            sum_over_ranks: sums a device tensor over all ranks, in place.
            sinks: where rows go; empty except on rank 0.
            norms_by_layer: whether rows hold gradient and update norms by layer.
            throughput: computes rates from counts and seconds; None for rows without rates.
        """
        self._throughput = throughput
        self._phase = phase
        self._sum_over_ranks = sum_over_ranks
        self._sinks = sinks
        self._norms_by_layer = norms_by_layer
        self._records: list[UpdateRecord] = []

    def add(self, record: UpdateRecord) -> None:
        """Keep a record until the next flush."""
        self._records.append(record)

    def add_evaluation(self, row: MetricsRow) -> None:
        """Pass the row of an evaluation to the sinks; the updates before it have been flushed."""
        for sink in self._sinks:
            sink.write_evaluation(row)

    def flush(self) -> None:
        """Reduce and read the records and pass their rows on; all ranks call it together.

        Raises:
            DivergedError: a loss or a gradient norm is not finite, or an update was skipped where
                there is no loss scale to lower; the rows have been passed to the sinks.
        """
        if not self._records:
            return
        records, self._records = self._records, []
        sums = self._sum_over_ranks(torch.stack([record.sums for record in records])).tolist()
        norms = _read_norms(records)
        rows = [
            make_row(self._phase, record, values, norm)
            for record, values, norm in zip(records, sums, norms, strict=True)
        ]
        if self._sinks:
            columns = norm_columns(
                [record.norms for record in records],
                [record.learning_rate for record in records],
                by_layer=self._norms_by_layer,
            )
            rows = [row | added for row, added in zip(rows, columns, strict=True)]
            if self._throughput is not None:
                rates = _rates(self._throughput, records)
                rows = [row | added for row, added in zip(rows, rates, strict=True)]
        for sink in self._sinks:
            sink.write(rows)
        for record, row in zip(records, rows, strict=True):
            _check_has_not_diverged(record, row)


def _check_has_not_diverged(record: UpdateRecord, row: MetricsRow) -> None:
    """Raise DivergedError for an update after which training cannot recover.

    Under fp16 a gradient that is not finite lowers the loss scale, and the engine limits how often.
    In the other precisions the next update would fare no better: DeepSpeed 0.19.8 either skips the
    update (ZeRO 1 to 3), which changes nothing, or leaves weights that are not numbers.
    """
    loss, norm = row["loss"], row["grad_norm"]
    is_finite = math.isfinite(loss) and (norm is None or math.isfinite(norm))
    if record.loss_scale is not None or (is_finite and record.was_applied):
        return
    update = record.global_step + int(not record.was_applied)
    outcome = "" if record.was_applied else " and the update was not applied"
    raise DivergedError(
        f"training of {row['phase']} has diverged at update {update}: the loss is {loss:.6g}, the "
        f"gradient norm {norm if norm is None else format(norm, '.6g')}, the learning rate "
        f"{record.learning_rate:.3g}{outcome}. Start a run in another --output-dir with a lower "
        "optimizer.params.lr or a longer warm-up; --resume PATH lets it begin from an earlier "
        "checkpoint of this one"
    )


def make_row(
    phase: str, record: UpdateRecord, sums: Sequence[float], grad_norm: float | None
) -> MetricsRow:
    """Return one row of `metrics.jsonl`.

    Args:
        phase: name of the phase.
        record: the update; its own `sums` are those of this rank and are not used.
        sums: the sums over all ranks.
        grad_norm: the record's gradient norm, read from the device.

    Returns:
        Losses are in nats: a term's is the mean over its answers, None if the update has none;
        `loss` is their weighted sum.
    """
    return {
        "phase": phase,
        "global_step": record.global_step,
        "skipped_steps": record.skipped_steps,
        "samples_seen": record.samples_seen,
        "tokens_seen": record.tokens_seen,
        **PRETRAINING.figures(sums, record.num_answers),
        "learning_rate": record.learning_rate,
        "grad_norm": grad_norm,
        "loss_scale": record.loss_scale,
        "step_s": record.step_s,
        "data_wait_s": record.data_wait_s,
        "sequences_per_s": record.num_sequences / record.step_s,
        "tokens_per_s": record.num_tokens / record.step_s,
    }


def _rates(throughput: Throughput, records: Sequence[UpdateRecord]) -> list[MetricsRow]:
    """Return `tflop_per_s` and `mfu` per rank, and the most memory that this rank has taken."""
    memory = throughput.peak_memory_mib()
    rates = [
        throughput.tflop_per_s(
            num_tokens=record.num_tokens,
            num_squared_lengths=record.num_squared_lengths,
            num_predictions=PRETRAINING.num_scored(record.num_answers),
            num_sequences=record.num_sequences,
            seconds=record.step_s,
        )
        for record in records
    ]
    return [
        {
            "tflop_per_s": rate,
            "mfu": rate / throughput.peak if throughput.peak else None,
            "peak_memory_mib": memory,
        }
        for rate in rates
    ]


def _read_norms(records: Sequence[UpdateRecord]) -> list[float | None]:
    known = [record.grad_norm for record in records if record.grad_norm is not None]
    if len(known) < len(records):
        return [None if norm is None else float(norm) for norm in (r.grad_norm for r in records)]
    values: list[float | None] = torch.stack(known).tolist()
    return values
