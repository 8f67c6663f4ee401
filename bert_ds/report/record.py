"""What a run folder holds, read with patience: a killed run leaves files missing or torn.

Whatever cannot be read is left out and said in words in `RunRecord.notes`. `samples_seen` is taken
to start from zero in each phase, as `global_step` does.
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
"""The numbers of one line of metrics.jsonl."""

_COUNTERS = ("global_step", "skipped_steps", "samples_seen", "tokens_seen")


@dataclass(frozen=True)
class PhaseRecord:
    """One phase: what summary.json says of it and what metrics.jsonl recorded.

    Attributes:
        name: as in the recipe.
        facts: its entry in summary.json, empty when there is none.
        columns: one float64 [updates] for each of `COLUMNS`, NaN where a value is missing.
        samples_before: samples of all earlier phases; where the phase starts on the x axis.
    """

    name: str
    facts: Mapping[str, Any]
    columns: Mapping[str, Floats]
    samples_before: float = 0.0

    @property
    def num_records(self) -> int:
        return len(self.columns["samples_seen"])

    @property
    def x(self) -> Floats:
        """Samples seen since the start of the run, float64 [updates]."""
        return self.samples_before + self.columns["samples_seen"]

    @property
    def data_wait_share(self) -> Floats:
        """Waiting for data as a fraction of `step_s` (which contains it), float64 [updates]."""
        step_s = self.columns["step_s"]
        return np.divide(
            self.columns["data_wait_s"], step_s, out=np.full_like(step_s, np.nan), where=step_s > 0
        )

    @property
    def is_past_its_summary(self) -> bool:
        """Whether metrics.jsonl goes further than summary.json, which is then out of date."""
        said, recorded = number_in(self.facts, "samples_seen"), self._last("samples_seen")
        return said is not None and recorded is not None and recorded > said

    def fact(self, key: str) -> float | None:
        """A number of summary.json; where it has none or is out of date, that of metrics.jsonl."""
        said = number_in(self.facts, key)
        if said is not None and not self.is_past_its_summary:
            return said
        if key in _COUNTERS:
            recorded = self._last(key)
        elif key == "final_loss":
            recorded = self._last("loss")
        elif key == "duration_s":
            recorded = total(self.columns["step_s"])
        else:
            recorded = None
        return said if recorded is None else recorded

    def median(self, column: str) -> float | None:
        """The median of a column over the phase."""
        values = self.data_wait_share if column == "data_wait_share" else self.columns[column]
        finite = values[np.isfinite(values)]
        return float(np.median(finite)) if len(finite) else None

    def _last(self, column: str) -> float | None:
        values = self.columns[column]
        finite = values[np.isfinite(values)]
        return float(finite[-1]) if len(finite) else None


class HeldOutFigures(NamedTuple):
    """What the held-out evaluation found for a term, as far as the summary has it."""

    loss: float | None
    """Nats an answer."""
    accuracy: float | None
    """Share of correct answers."""
    guess: float | None
    """Accuracy of the trivial guess."""


@dataclass(frozen=True)
class RunRecord:
    """A run folder. `summary` is empty and `config` None where the file is missing or torn."""

    name: str
    summary: Mapping[str, Any]
    config: Any
    phases: tuple[PhaseRecord, ...]
    notes: tuple[str, ...]

    @property
    def recipe(self) -> str:
        return text_in(self.summary, "recipe") or text_in(as_mapping(self.config), "recipe")

    @property
    def status(self) -> str:
        if any(phase.is_past_its_summary for phase in self.phases):
            return "running or killed"
        default = "status not recorded" if self.summary else "running or killed"
        return text_in(self.summary, "status") or default

    @property
    def held_out(self) -> Mapping[str, Any]:
        return as_mapping(self.summary.get("held_out"))

    def held_out_of(self, term: Term) -> HeldOutFigures:
        """Return the held-out figures of one of the objectives' terms."""
        guess = number_in(self.held_out, f"{term.guess.name}_accuracy") if term.guess else None
        accuracy, loss = (number_in(self.held_out, key) for key in (term.accuracy, term.loss))
        return HeldOutFigures(loss, accuracy, guess)

    def total(self, key: str) -> float | None:
        """Return the sum of a fact over the phases that know it."""
        known = [value for phase in self.phases if (value := phase.fact(key)) is not None]
        return math.fsum(known) if known else None


@dataclass
class _Metrics:
    """The lines of metrics.jsonl by phase, in order of first appearance."""

    phases: dict[str, dict[str, array[float]]] = field(default_factory=dict)
    num_unreadable: int = 0
    is_last_torn: bool = False

    def add(self, line: bytes) -> None:
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
    """Reads summary.json, metrics.jsonl and config.json of a run folder.

    Raises:
        CheckpointError: there is no such folder, or none of the three files is in it.
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
    """A finite JSON number as float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        converted = float(value)
    except OverflowError:
        return None
    return converted if math.isfinite(converted) else None


def as_mapping(value: object) -> Mapping[str, Any]:
    """A JSON object, or an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def number_in(mapping: Mapping[str, Any], key: str) -> float | None:
    """The finite number under `key`, or None."""
    return as_number(mapping.get(key))


def text_in(mapping: Mapping[str, Any], key: str) -> str:
    """The text under `key` on one line, or an empty string."""
    value = mapping.get(key)
    return formats.plain(value) if isinstance(value, str) else ""


def total(values: Floats) -> float | None:
    """The sum of the finite values; None when there are none."""
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
    # A torn last line is what any kill leaves: no fault, and nothing that a reader could act on.
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
    """Columns without the updates that a resumed run made again, and how many those were."""
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
