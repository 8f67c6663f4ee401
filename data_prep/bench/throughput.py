"""`bert-prep bench`: text to shards, timed stage by stage, with the memory of a worker.

Every measured preparation runs in a process of its own with nothing kept from the one before but
the compiled functions, which the first, unmeasured one makes sure of. The runs of several `-j` take
turns.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from data_prep.contract.errors import DataPrepError, UsageError
from data_prep.contract.manifest import MANIFEST_NAME, SPLITS, dataset_folder, load_manifest
from data_prep.contract.version import tool_version
from data_prep.running.files import write_json
from data_prep.text.inputs import find_inputs


@dataclass(frozen=True)
class BenchOptions:
    """What is measured."""

    inputs: Sequence[str]
    """Files and folders."""
    vocabulary: Path | None = None
    """The vocabulary file; None trains one on the text first."""
    vocab_size: int = 30_522
    """Pieces to train."""
    cased: bool = False
    """Whether upper case and accents are kept."""
    sequence_length: int = 128
    """Tokens of a full row."""
    duplicate_factor: int = 1
    """How often each document is used."""
    jobs: Sequence[int] = (1,)
    """Numbers of processes to compare."""
    repeats: int = 3
    """Measured runs of each."""


@dataclass(frozen=True)
class Measured:
    """One preparation."""

    jobs: int
    """Number of processes."""
    total_s: float
    """From the start of the command to its end."""
    stages_s: dict[str, float]
    """Seconds by stage."""
    rows: int
    """Rows of both splits."""
    peak_mib: float
    """Largest resident memory of a single process."""
    cpu_s: float
    """User and system time of all processes."""
    manifest_bytes: int
    """Size of the manifest."""


def run_bench(options: BenchOptions, json_path: Path | None = None) -> Iterator[str]:
    """Measure, and yield lines for people.

    Raises:
        UsageError: a number below 1, or an input that does not exist.
        DataPrepError: a preparation failed.
    """
    if options.repeats < 1 or min(options.jobs) < 1:
        raise UsageError("--repeats and -j must be at least 1.")
    files = find_inputs(options.inputs).files
    size = int(files.sizes.sum())
    with tempfile.TemporaryDirectory(prefix="bert-prep-bench-") as folder:
        vocabulary = options.vocabulary or train(options, Path(folder) / "vocab.txt")
        prepare(options, vocabulary, options.jobs[0], Path(folder))
        runs = [
            prepare(options, vocabulary, jobs, Path(folder))
            for _ in range(options.repeats)
            for jobs in options.jobs
        ]
    yield (
        f"{size / 1e6:.1f} MB in {len(files)} files to rows of {options.sequence_length}, "
        f"duplicate factor {options.duplicate_factor}; {machine(options)}"
    )
    yield f"{'-j':>4} {'s':>8} {'MB/s':>8} {'rows/s':>10} {'peak MiB':>9}  seconds by stage"
    for jobs in options.jobs:
        yield _line([run for run in runs if run.jobs == jobs], size)
    if len(options.jobs) > 1:
        base, last = options.jobs[0], options.jobs[-1]
        ratio = _total(runs, base) / _total(runs, last)
        yield f"-j {last} is {ratio:.2f} times as fast as -j {base}"
    if json_path is not None:
        content = {
            "options": {**asdict(options), "vocabulary": str(options.vocabulary or "")},
            "input_bytes": size,
            "runs": [asdict(run) for run in runs],
        }
        write_json(json_path, json.loads(json.dumps(content, default=str)))


def machine(options: BenchOptions) -> str:
    """Return what was measured on, and how often, in words."""
    return (
        f"bert_ds {tool_version()}, {platform.machine()}, {len(os.sched_getaffinity(0))} cores, "
        f"medians of {options.repeats}"
    )


def _total(runs: Sequence[Measured], jobs: int) -> float:
    """Return median seconds of the runs with `jobs` processes."""
    return median(run.total_s for run in runs if run.jobs == jobs)


def _line(runs: Sequence[Measured], size: int) -> str:
    """Return the medians of some equal runs."""
    total = median(run.total_s for run in runs)
    stages = ", ".join(
        f"{name} {median(run.stages_s[name] for run in runs):.2f}" for name in runs[0].stages_s
    )
    peak = median(run.peak_mib for run in runs)
    return (
        f"{runs[0].jobs:>4} {total:>8.2f} {size / total / 1e6:>8.1f} "
        f"{runs[0].rows / total:>10.0f} {peak:>9.0f}  {stages}"
    )


def train(options: BenchOptions, path: Path) -> Path:
    """Return a vocabulary of the text."""
    arguments = ["vocab", "--input", *options.inputs, "--output", str(path)]
    arguments += ["--vocab-size", str(options.vocab_size), *(["--cased"] * options.cased)]
    _run(arguments)
    return path


def prepare(
    options: BenchOptions, vocabulary: Path, jobs: int, folder: Path, files: Path | None = None
) -> Measured:
    """Measure one preparation in a process of its own.

    Args:
        options: what is measured.
        vocabulary: the pieces.
        jobs: number of processes.
        folder: for what is made, which is removed again.
        files: a folder of files of one document each, instead of the inputs.
    """
    output = folder / "D"
    stages = folder / "stages.json"
    inputs = [str(files), "--one-document-per-file"] if files else options.inputs
    arguments = ["shards", "--input", *inputs, "--vocab", str(vocabulary)]
    arguments += ["--output-dir", str(output), "--duplicate-factor", str(options.duplicate_factor)]
    arguments += ["--sequence-length", str(options.sequence_length), "-j", str(jobs)]
    arguments += [*(["--cased"] * options.cased), "--timings", str(stages)]
    start = time.perf_counter()
    _run(arguments)
    total_s = time.perf_counter() - start
    measured = json.loads(stages.read_text(encoding="utf-8"))
    dataset = dataset_folder(output, options.sequence_length)
    manifest, manifest_bytes = load_manifest(dataset), (dataset / MANIFEST_NAME).stat().st_size
    rows = sum(manifest.totals(split).rows for split in SPLITS)
    shutil.rmtree(output)
    return Measured(
        jobs,
        total_s,
        measured["stages_s"],
        rows,
        measured["peak_mib"],
        measured["cpu_s"],
        manifest_bytes,
    )


def _run(arguments: Sequence[str]) -> None:
    """Run a command of `bert-prep`; DataPrepError with its message where it fails."""
    command = [sys.executable, "-m", "data_prep", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        found = re.findall(r"error: (.*)", done.stderr)
        raise DataPrepError(found[-1] if found else done.stderr.strip()[-2000:])
