"""`bert-prep bench --files N...`: what a file costs that holds one short document.

The same preparation for different numbers of files: what grows with their number is the cost of a
file, the rest that of a start. The files are made of the documents of a text, as often as needed,
each with its number in front, so that no two are equal; a thousand lie in a folder.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice, pairwise
from pathlib import Path
from statistics import median

from data_prep.bench.throughput import BenchOptions, Measured, machine, prepare, train
from data_prep.contract.errors import InputError, UsageError
from data_prep.running.files import write_json
from data_prep.text.file_chunks import read_files
from data_prep.text.inputs import TextFormat, find_inputs

_LONGEST_DOCUMENT = 600
"""Characters that are taken of a document."""
_DOCUMENTS = 20_000
"""Documents that are taken of the text."""
_FILES_A_FOLDER = 1_000


@dataclass(frozen=True)
class FilesMeasured:
    """Preparations of one number of files; medians."""

    files: int
    """Number of files."""
    input_bytes: int
    """Bytes of all of them."""
    cpu_s: float
    """User and system time of all processes."""
    total_s: float
    """Seconds from the start of the command to its end."""
    peak_mib: float
    """Largest resident memory of a single process."""
    manifest_bytes: int
    """Size of the manifest."""


def run_files_bench(
    options: BenchOptions, numbers: Sequence[int], json_path: Path | None = None
) -> Iterator[str]:
    """Measure, and yield lines for people.

    Args:
        options: what is measured; the first of `jobs` counts.
        numbers: numbers of files.
        json_path: where to write the figures, or None.

    Raises:
        UsageError: a number below 1, or an input that does not exist.
        DataPrepError: a preparation failed.
    """
    if options.repeats < 1 or min(options.jobs) < 1 or min(numbers) < 1:
        raise UsageError("--files, --repeats and -j must be at least 1.")
    documents = list(islice(_documents(options), _DOCUMENTS))
    if not documents:
        raise InputError("the text has no document; give another one.")
    measured = []
    with tempfile.TemporaryDirectory(prefix="bert-prep-bench-") as name:
        folder = Path(name)
        vocabulary = options.vocabulary or train(options, folder / "vocab.txt")
        prepare(options, vocabulary, options.jobs[0], folder)  # compiles, if it must
        for number in sorted(numbers):
            measured.append(_measure(options, vocabulary, documents, number, folder))
    yield (
        f"files of one document to rows of {options.sequence_length}, duplicate factor "
        f"{options.duplicate_factor}, -j {options.jobs[0]}; {machine(options)}"
    )
    yield (
        f"{'files':>9} {'MB':>7} {'CPU s':>8} {'s':>8} {'peak MiB':>9} {'manifest':>9}"
        "  each file more than in the line before"
    )
    yield _line(measured[0])
    for before, after in pairwise(measured):
        yield f"{_line(after)}  {_difference(before, after)}"
    if json_path is not None:
        content = {"options": asdict(options), "runs": [asdict(entry) for entry in measured]}
        write_json(json_path, json.loads(json.dumps(content, default=str)))


def _documents(options: BenchOptions) -> Iterator[str]:
    """Yield the beginnings of the documents of the text."""
    for chunk, _ in read_files(find_inputs(options.inputs).files, TextFormat()):
        for text in chunk.texts():
            yield text[:_LONGEST_DOCUMENT]


def _measure(
    options: BenchOptions, vocabulary: Path, documents: Sequence[str], number: int, folder: Path
) -> FilesMeasured:
    """Measure preparations of `number` files."""
    inputs = folder / "files"
    size = 0
    for index, text in enumerate(islice(cycle(documents), number)):
        path = inputs / f"{index // _FILES_A_FOLDER:05d}" / f"{index:08d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        size += path.write_bytes(f"{index}. {text}\n".encode())
    runs: list[Measured] = [
        prepare(options, vocabulary, options.jobs[0], folder, inputs)
        for _ in range(options.repeats)
    ]
    shutil.rmtree(inputs)
    return FilesMeasured(
        number,
        size,
        median(run.cpu_s for run in runs),
        median(run.total_s for run in runs),
        median(run.peak_mib for run in runs),
        runs[0].manifest_bytes,
    )


def _line(measured: FilesMeasured) -> str:
    """Return the figures of one number of files."""
    return (
        f"{measured.files:>9} {measured.input_bytes / 1e6:>7.1f} {measured.cpu_s:>8.2f} "
        f"{measured.total_s:>8.2f} {measured.peak_mib:>9.0f} {measured.manifest_bytes:>9}"
    )


def _difference(before: FilesMeasured, after: FilesMeasured) -> str:
    """Return what each further file costs, in words."""
    more = max(after.files - before.files, 1)
    cpu_us = (after.cpu_s - before.cpu_s) / more * 1e6
    memory = (after.peak_mib - before.peak_mib) / more * (1 << 20)
    manifest = (after.manifest_bytes - before.manifest_bytes) / more
    return f"{cpu_us:.0f} us CPU, {memory:.0f} bytes of memory, {manifest:.2f} of manifest"
