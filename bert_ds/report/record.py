"""Reads a run folder tolerantly: a killed run leaves files that are missing or incomplete.

What cannot be read is left out, and `RunRecord.notes` lists it in words. `samples_seen` starts from
zero in each phase, as `global_step` does.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_ds.errors import CheckpointError
from bert_ds.objectives import PRETRAINING, Term
from bert_ds.report import formats
from bert_ds.report.curves import Floats

COLUMNS = (
    "global_step", "skipped_steps", "samples_seen", "tokens_seen", *PRETRAINING.columns,
    "learning_rate", "grad_norm", "loss_scale", "step_s",
    "data_wait_s", "sequences_per_s", "tokens_per_s",
)  # fmt: skip
"""The numbers in a line of metrics.jsonl."""

_COUNTERS = ("global_step", "skipped_steps", "samples_seen", "tokens_seen")


@dataclass(frozen=True)
class PhaseRecord:
    """What summary.json and metrics.jsonl hold of one phase."""

    name: str
    """Name of the phase in the recipe."""
    facts: Mapping[str, Any]
    """The phase's entry in summary.json; empty if there is none."""
    columns: Mapping[str, Floats]
    """float64 [updates] for each of `COLUMNS`, NaN where a value is missing."""
    samples_before: float = 0.0
    """Samples of all earlier phases: where the phase starts on the x axis."""

    @property
    def num_records(self) -> int:
        """Number of updates in metrics.jsonl."""
        return len(self.columns["samples_seen"])

    @property
    def x(self) -> Floats:
        """Samples seen since the start of the run, float64 [updates]."""
        return self.samples_before + self.columns["samples_seen"]

    @property
    def data_wait_share(self) -> Floats:
        """Fraction of `step_s` that was spent waiting for data, float64 [updates]."""
        step_s = self.columns["step_s"]
        return np.divide(
            self.columns["data_wait_s"], step_s, out=np.full_like(step_s, np.nan), where=step_s > 0
        )

    @property
    def is_past_its_summary(self) -> bool:
        """Whether summary.json is out of date: metrics.jsonl has later updates."""
        summarised, recorded = number_in(self.facts, "samples_seen"), self._last("samples_seen")
        return summarised is not None and recorded is not None and recorded > summarised

    def fact(self, key: str) -> float | None:
        """Return a number of summary.json or, if that is missing or out of date, metrics.jsonl."""
        summarised = number_in(self.facts, key)
        if summarised is not None and not self.is_past_its_summary:
            return summarised
        if key in _COUNTERS:
            recorded = self._last(key)
        elif key == "final_loss":
            recorded = self._last("loss")
        elif key == "duration_s":
            recorded = total(self.columns["step_s"])
        else:
            recorded = None
        return summarised if recorded is None else recorded

    def median(self, column: str) -> float | None:
        """Return the median of a column over the phase; None if it has no values."""
        values = self.data_wait_share if column == "data_wait_share" else self.columns[column]
        finite = values[np.isfinite(values)]
        return float(np.median(finite)) if len(finite) else None

    def _last(self, column: str) -> float | None:
        values = self.columns[column]
        finite = values[np.isfinite(values)]
        return float(finite[-1]) if len(finite) else None


class HeldOutFigures(NamedTuple):
    """Results of the held-out evaluation for a term; None for what the summary lacks."""

    loss: float | None
    """Mean loss of an answer, nats."""
    accuracy: float | None
    """Fraction of correct answers."""
    guess: float | None
    """Accuracy of the trivial guess."""


@dataclass(frozen=True)
class RunRecord:
    """The content of a run folder."""

    name: str
    """Name of the folder."""
    summary: Mapping[str, Any]
    """Content of summary.json; empty if the file is missing or incomplete."""
    config: Any
    """Content of config.json; None if the file is missing or incomplete."""
    phases: tuple[PhaseRecord, ...]
    """The phases that have begun, in order."""
    notes: tuple[str, ...]
    """Sentences on what is missing or unusual."""

    @property
    def recipe(self) -> str:
        """Name of the recipe; empty if unknown."""
        return text_in(self.summary, "recipe") or text_in(as_mapping(self.config), "recipe")

    @property
    def status(self) -> str:
        """Status of the run, in words."""
        if any(phase.is_past_its_summary for phase in self.phases):
            return "running or killed"
        default = "status not recorded" if self.summary else "running or killed"
        return text_in(self.summary, "status") or default

    @property
    def held_out(self) -> Mapping[str, Any]:
        """Results of the last held-out evaluation; empty if there are none."""
        return as_mapping(self.summary.get("held_out"))

    def held_out_of(self, term: Term) -> HeldOutFigures:
        """Return the held-out figures of one of the objectives' terms."""
        guess = number_in(self.held_out, f"{term.guess.name}_accuracy") if term.guess else None
        accuracy, loss = (number_in(self.held_out, key) for key in (term.accuracy, term.loss))
        return HeldOutFigures(loss, accuracy, guess)

    def total(self, key: str) -> float | None:
        """Return the sum of a fact over the phases that have it; None if none has."""
        known = [value for phase in self.phases if (value := phase.fact(key)) is not None]
        return math.fsum(known) if known else None


@dataclass
class _Metrics:
    """The lines of metrics.jsonl by phase, in order of first appearance."""

    phases: dict[str, dict[str, array[float]]] = field(default_factory=dict)
    """The columns of each phase, by its name."""
    num_unreadable: int = 0
    """Lines that are no row."""
    is_last_torn: bool = False
    """Whether the last line is one of them."""

    def add(self, line: bytes) -> None:
        """Add a line."""
        self.is_last_torn = False
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict) or as_number(entry.get("samples_seen")) is None:
            self.num_unreadable += 1
            self.is_last_torn = True
            return
        name = str(entry.get("phase", "phase"))
        columns = self.phases.get(name)
        if columns is None:
            columns = self.phases[name] = {column: array("d") for column in COLUMNS}
        for column, values in columns.items():
            value = as_number(entry.get(column))
            values.append(math.nan if value is None else value)


def read_run(run_dir: Path) -> RunRecord:
    """Read summary.json, metrics.jsonl and config.json of a run folder.

    Raises:
        CheckpointError: there is no such folder, or it has none of the three files.
    """
    if not run_dir.is_dir():
        raise CheckpointError(
            f"run folder {run_dir} does not exist or is not a folder; "
            "give the --output-dir of a `bert-ds pretrain` run."
        )
    if not any((run_dir / f).exists() for f in ("summary.json", "metrics.jsonl", "config.json")):
        raise CheckpointError(
            f"{run_dir} holds no summary.json, metrics.jsonl or config.json, so it is not the "
            "folder of a run that has started; give the --output-dir of a `bert-ds pretrain` run."
        )
    notes: list[str] = []
    summary = as_mapping(_read_json(run_dir / "summary.json", notes))
    config = _read_json(run_dir / "config.json", notes)
    phases = _phases(summary, _read_metrics(run_dir / "metrics.jsonl", notes), notes)
    _note_what_is_missing(summary, phases, notes)
    return RunRecord(run_dir.resolve().name, summary, config, phases, tuple(notes))


def as_number(value: object) -> float | None:
    """Return a finite JSON number as float, and None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        converted = float(value)
    except OverflowError:
        return None
    return converted if math.isfinite(converted) else None


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object, and an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def number_in(mapping: Mapping[str, Any], key: str) -> float | None:
    """Return the finite number under `key`, or None."""
    return as_number(mapping.get(key))


def text_in(mapping: Mapping[str, Any], key: str) -> str:
    """Return the text under `key` on one line, or an empty string."""
    value = mapping.get(key)
    return formats.plain(value) if isinstance(value, str) else ""


def total(values: Floats) -> float | None:
    """Return the sum of the finite values; None if there are none."""
    finite = values[np.isfinite(values)]
    return float(finite.sum()) if len(finite) else None


def _read_json(path: Path, notes: list[str]) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        notes.append(f"{path.name} is missing.")
    except (OSError, ValueError, RecursionError) as err:
        notes.append(f"{path.name} cannot be read and is left out ({formats.plain(err)}).")
    return None


def _read_metrics(path: Path, notes: list[str]) -> _Metrics:
    metrics = _Metrics()
    try:
        with path.open("rb") as lines:
            for line in lines:
                if line.strip():
                    metrics.add(line)
    except FileNotFoundError:
        notes.append(f"{path.name} is missing, so there are no curves.")
        return metrics
    except OSError as err:
        notes.append(f"{path.name} cannot be read to its end ({formats.plain(err)}).")
    # Any kill may leave an incomplete last line: it is no fault, and a reader can do nothing.
    num_unreadable = metrics.num_unreadable - metrics.is_last_torn
    if num_unreadable:
        notes.append(f"{path.name}: {num_unreadable:,} unreadable line(s) left out.")
    if not metrics.phases:
        notes.append(f"{path.name} holds no update yet, so there are no curves.")
    return metrics


def _phases(
    summary: Mapping[str, Any], metrics: _Metrics, notes: list[str]
) -> tuple[PhaseRecord, ...]:
    entries = summary.get("phases")
    facts: dict[str, Mapping[str, Any]] = {}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict):
            facts[str(entry.get("name", "phase"))] = entry
    phases: list[PhaseRecord] = []
    samples_before = 0.0
    for name in dict.fromkeys([*facts, *metrics.phases]):
        recorded = metrics.phases.get(name) or {column: array("d") for column in COLUMNS}
        columns, num_repeated = _without_repeats(recorded)
        if num_repeated:
            notes.append(
                f"{formats.plain(name)}: {num_repeated:,} update(s) were made again after a "
                "resume from an earlier checkpoint; the later ones are shown."
            )
        phase = PhaseRecord(name, facts.get(name, {}), columns, samples_before)
        phases.append(phase)
        samples_before += phase.fact("samples_seen") or 0.0
    return tuple(phases)


def _without_repeats(recorded: Mapping[str, array[float]]) -> tuple[dict[str, Floats], int]:
    """Return columns without the updates that a resumed run made again, and the number of those."""
    columns = {name: np.array(values, dtype=np.float64) for name, values in recorded.items()}
    samples_seen = columns["samples_seen"]
    if not len(samples_seen):
        return columns, 0
    # A record stands unless a later one starts from before it.
    least_from_here = np.minimum.accumulate(samples_seen[::-1])[::-1]
    is_kept = np.append(samples_seen[:-1] < least_from_here[1:], True)
    num_repeated = int(len(is_kept) - is_kept.sum())
    return {name: values[is_kept] for name, values in columns.items()}, num_repeated


def _note_what_is_missing(
    summary: Mapping[str, Any], phases: tuple[PhaseRecord, ...], notes: list[str]
) -> None:
    if not summary:
        notes.append(
            "Without a summary the run was killed or is still running: its figures are counted "
            "from metrics.jsonl, and total steps, held-out accuracy and versions are not known."
        )
    for phase in phases:
        name = formats.plain(phase.name)
        done, planned = phase.fact("global_step"), phase.fact("total_steps")
        if done is not None and planned is not None and done < planned:
            notes.append(f"{name} stopped at update {done:,.0f} of {planned:,.0f}.")
        if phase.is_past_its_summary:
            notes.append(
                f"{name}: metrics.jsonl goes further than summary.json: the run went on after "
                "the summary was written. Counts are those of metrics.jsonl."
            )
        losses = phase.columns["loss"]
        num_lost = int(len(losses) - np.isfinite(losses).sum())
        if num_lost:
            notes.append(f"{name}: {num_lost:,} update(s) have no finite loss; not drawn.")
    if summary and not as_mapping(summary.get("held_out")):
        notes.append("There is no held-out evaluation.")
    if summary and not text_in(summary, "export"):
        notes.append("The model was not exported.")
