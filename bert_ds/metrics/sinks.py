"""Where rows of metrics go: `metrics.jsonl`, TensorBoard, and the terminal."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from tqdm import tqdm

from bert_ds.durations import duration
from bert_ds.metrics.meter import MetricsRow
from bert_ds.objectives import PRETRAINING
from data_prep.contract.screen import has_a_screen

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_TENSORBOARD_TAGS = (
    *PRETRAINING.columns, "learning_rate", "grad_norm", "loss_scale", "skipped_steps",
    "sequences_per_s", "tokens_per_s", "data_wait_s",
    "tflop_per_s", "mfu", "peak_memory_mib",
    "trust_ratio_min", "trust_ratio_median", "trust_ratio_max",
)  # fmt: skip
_EVALUATION_TAGS = PRETRAINING.held_out_keys
_BY_LAYER = ("grad_norm_by_layer", "update_norm_by_layer")
_ONLY_FOR_HISTOGRAMS = ("trust_ratios",)
_SECONDS_BETWEEN_LINES = 10.0


class JsonLinesSink:
    """Appends rows to `metrics.jsonl` and `evaluations.jsonl`, and syncs the file each time."""

    def __init__(self, path: Path, evaluations: Path) -> None:
        """Open no file yet.

        Args:
            path: file for the rows of updates.
            evaluations: file for the rows of evaluations.
        """
        self._path = path
        self._evaluations = evaluations

    def write(self, rows: Sequence[MetricsRow]) -> None:
        """Append one line per row."""
        _append(self._path, rows)

    def write_evaluation(self, row: MetricsRow) -> None:
        """Append a line."""
        _append(self._evaluations, [row])

    def close(self) -> None:
        """Do nothing: every write has been synced."""


def _append(path: Path, rows: Sequence[MetricsRow]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(to_json_line(row) for row in rows)
        file.flush()
        os.fsync(file.fileno())


def to_json_line(row: MetricsRow) -> str:
    """Return a row as one line; a value that is not finite cannot be JSON and becomes null."""
    kept = {key: _finite(value) for key, value in row.items() if key not in _ONLY_FOR_HISTOGRAMS}
    return json.dumps(kept, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return value


def keep_rows(path: Path, is_kept: Callable[[MetricsRow], bool]) -> None:
    """Rewrite a metrics file with the rows that are kept; an incomplete last line is dropped.

    A run that resumes from a checkpoint makes updates again that the killed run had logged. Their
    rows are removed first, so that the file has every update exactly once.

    Args:
        path: the file, which may be missing.
        is_kept: whether to keep a row.
    """
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if is_kept(row):
            kept.append(line + "\n")
    temporary = path.with_name(path.name + ".incomplete")
    temporary.write_text("".join(kept), encoding="utf-8")
    temporary.replace(path)


class TensorBoardSink:
    """Writes the rows of a phase under `<phase>/`, over the samples seen in the whole run.

    Columns become scalars, norms by layer scalars `grad_norm_by_layer/<layer>`. Each flush adds a
    histogram of the trust ratios and, as text, the ten that are furthest from their median.
    """

    def __init__(self, folder: Path, phase: str, samples_before: int, samples_seen: int) -> None:
        """Open the phase's log and drop what it holds after the present samples.

        Args:
            folder: folder of TensorBoard's logs.
            phase: name of the phase.
            samples_before: samples of earlier phases.
            samples_seen: samples of this phase so far.
        """
        from torch.utils.tensorboard import SummaryWriter

        self._phase = phase
        self._samples_before = samples_before
        self._writer: SummaryWriter = SummaryWriter(
            str(folder / phase), purge_step=samples_before + samples_seen + 1
        )

    def write(self, rows: Sequence[MetricsRow]) -> None:
        """Add the values that rows have."""
        for row in rows:
            step = self._samples_before + row["samples_seen"]
            for tag in _TENSORBOARD_TAGS:
                if row.get(tag) is not None:
                    self._writer.add_scalar(tag, row[tag], step)
            for tag in _BY_LAYER:
                for layer, norm in row.get(tag, {}).items():
                    self._writer.add_scalar(f"{tag}/{layer}", norm, step)
            ratios = [ratio for ratio in row.get("trust_ratios", ()) if math.isfinite(ratio)]
            if ratios:
                self._writer.add_histogram("trust_ratio", np.array(ratios), step)
            if row.get("trust_ratios_furthest"):
                lines = [f"| {n} | {r:.4g} |" for n, r in row["trust_ratios_furthest"].items()]
                table = "\n".join(["| parameter | trust ratio |", "|---|---|", *lines])
                self._writer.add_text("trust_ratios_furthest_from_median", table, step)

    def write_evaluation(self, row: MetricsRow) -> None:
        """Add the scalars `valid_*`."""
        step = self._samples_before + row["samples_seen"]
        for tag in _EVALUATION_TAGS:
            if row.get(tag) is not None:
                self._writer.add_scalar(f"valid_{tag}", row[tag], step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is pending."""
        self._writer.close()


class ProgressSink:
    """Shows loss, accuracy, rate and time left: a bar on a terminal, plain lines elsewhere."""

    def __init__(
        self,
        phase: str,
        total_steps: int,
        global_step: int,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        later_work: float = 0.0,
        skipped_steps: int = 0,
    ) -> None:
        """Start at the present step.

        Args:
            phase: name of the phase.
            total_steps: applied updates at its end.
            global_step: applied updates so far.
            stream: where to write.
            clock: returns the time in seconds.
            later_work: work of the phases after this one, as a multiple of this one's.
            skipped_steps: skipped updates so far.
        """
        self._skipped_steps = skipped_steps
        self._later_work = later_work
        self._phase = phase
        self._total_steps = total_steps
        self._stream = stream
        self._clock = clock
        self._started_at = clock()
        self._started_step = global_step
        self._line_due = self._started_at
        self._bar: Any = None
        if has_a_screen(stream):
            self._bar = tqdm(
                total=total_steps,
                initial=global_step,
                desc=phase,
                unit="update",
                file=stream,
                dynamic_ncols=True,
            )

    def write(self, rows: Sequence[MetricsRow]) -> None:
        """Show the means of the rows."""
        step = rows[-1]["global_step"]
        if self._bar is not None:
            left = self._time_left(step).partition(", ")[2]
            text = f"{summarise(rows)}{self._skipped(rows[-1])}  {left}".rstrip()
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(step - self._bar.n)
        elif self._clock() >= self._line_due or step >= self._total_steps:
            self._stream.write(
                f"{self._phase} {step}/{self._total_steps}  {summarise(rows)}"
                f"{self._skipped(rows[-1])}  {self._time_left(step)}\n"
            )
            self._stream.flush()
            self._line_due = self._clock() + _SECONDS_BETWEEN_LINES

    def write_evaluation(self, row: MetricsRow) -> None:
        """Show the result, above the bar."""
        text = (
            f"{self._phase} {row['global_step']}/{self._total_steps}  held-out "
            f"{PRETRAINING.held_out_text(row)}"
        )
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        else:
            self._stream.write(text + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Leave the terminal's cursor on a new line."""
        if self._bar is not None:
            self._bar.close()

    def _skipped(self, row: MetricsRow) -> str:
        """Return how many updates were skipped since the last line; empty for none."""
        number = row["skipped_steps"] - self._skipped_steps
        self._skipped_steps = row["skipped_steps"]
        if not number:
            return ""
        scale = row["loss_scale"]
        return f"  {number} skipped" + ("" if scale is None else f", loss scale {scale:g}")

    def _time_left(self, step: int) -> str:
        done = max(step - self._started_step, 1)
        of_an_update = (self._clock() - self._started_at) / done
        left = of_an_update * (self._total_steps - step)
        text = f"{duration(left, decimals=0)} left"
        if self._later_work:
            in_all = left + of_an_update * self._total_steps * self._later_work
            text += f", {duration(in_all, decimals=0)} in all phases"
        return text


def summarise(rows: Sequence[MetricsRow]) -> str:
    """Return the most important numbers as text: means over the rows, the last learning rate."""

    def mean(key: str) -> float:
        known = [row[key] for row in rows if row[key] is not None]
        return math.fsum(known) / len(known) if known else math.nan

    rate = sum(row["sequences_per_s"] * row["step_s"] for row in rows) / max(
        sum(row["step_s"] for row in rows), 1e-9
    )
    term = PRETRAINING.leading
    return (
        f"loss {mean('loss'):.3f}  {term.name}_acc {mean(term.accuracy):.3f}  "
        f"lr {rows[-1]['learning_rate']:.2e}  {rate:,.0f} seq/s"
    )
