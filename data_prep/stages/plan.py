"""The plan of a preparation: what decides its bytes, and how the inputs are cut into map tasks.

The identity (parameters, vocabulary, inputs) decides every byte of the result; the tasks do not.
The plan lies in the work folder, so that an interrupted preparation resumes with its own tasks, and
one with another identity is refused. Nothing in it grows with the number of input files but the
columns of `data_prep.text.input_files`, which lie in a file of their own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from data_prep.contract.errors import DataError, UsageError
from data_prep.contract.format import FORMAT_VERSION
from data_prep.contract.manifest import InputSummary, Manifest, VocabularyEntry
from data_prep.contract.masking import MaskingKind
from data_prep.contract.version import tool_version
from data_prep.running.files import write_json
from data_prep.stages.pairs import PairKind, PairRules, RandomNext
from data_prep.text.input_files import InputFiles, StoredFiles, remove_other_files, write_files
from data_prep.text.input_hashes import FILE_BYTES, runs
from data_prep.text.inputs import TextFormat, is_compressed
from data_prep.text.readers import cut_points
from data_prep.text.sentences import check_rule

PLAN_NAME = "plan.json"
WORK_VERSION = 4
"""Version of the files of a work folder; one of another version cannot be resumed."""
SHORTEST_SEQUENCE = 8
LONGEST_SEQUENCE = 65_535  # `length` is uint16
SMALLEST_MEMORY = 512 << 20
_BUCKET_BYTES = 1 << 20
_BUCKETS = 1 << 10  # enough for as many groups as are wanted; memory may ask for more
_MOST_BUCKETS = 1 << 15
_SMALLEST_TASK_BYTES, _LARGEST_TASK_BYTES = 2 << 20, 256 << 20
_WANTED_TASKS = 256
_PROGRAM_BYTES = 320 << 20  # of a worker before it has read a document
_TOKENS_A_ROW = 64  # of a document, at 128; a function of the lengths would change with them
_NAMED = 5
_NAMES_AT_ONCE = 1 << 16
_PACKED = 5  # how much smaller compressed text is taken to be


@dataclass(frozen=True)
class ShardOptions:
    """Every parameter of a preparation that decides its bytes, besides vocabulary and inputs."""

    sequence_length: tuple[int, ...]
    """Tokens of a full row; one dataset folder is made for each."""
    max_predictions_per_seq: tuple[int, ...]
    """Most masked positions of a row, for each `sequence_length`."""
    duplicate_factor: int = 5
    """How often each document is used, with other pairs and masks."""
    seed: int = 0
    """Key of all random numbers."""
    masking: MaskingKind | Literal["none"] = "token"
    """"none" leaves the masking to the reader, who makes new masks every epoch."""
    pairs: PairKind = "next_sentence"
    """What the label of a row says; see `data_prep.stages.pairs`."""
    random_next: RandomNext = "google"
    """Whose second segments are random; see `data_prep.stages.pairs`."""
    short_sequence_probability: float = 0.1
    """Probability that a row is made for a random smaller number of tokens."""
    valid_fraction: float = 0.01
    """Share of the documents that are held out."""
    rows_per_block: int = 1_024
    """Rows of each block but the last of a group."""
    blocks_per_shard: int = 256
    """Blocks of each shard but the last of a group."""
    sentences: str = "rules"
    """How text is cut into sentences; see `data_prep.text.sentences`."""
    memory_per_worker: int = 1 << 30
    """Bytes that a worker may take; decides how the documents are grouped."""
    one_document_per_file: bool = False
    """Whether a .txt file is one document."""
    json_field: str = "text"
    """The field of .jsonl lines that holds the text."""

    @property
    def text_format(self) -> TextFormat:
        """How documents lie in the inputs."""
        return TextFormat(self.one_document_per_file, self.json_field)

    def pair_rules(self, index: int) -> PairRules:
        """Return how rows are made of documents for the length at `index`."""
        return PairRules(
            self.pairs,
            self.sequence_length[index],
            self.short_sequence_probability,
            self.random_next,
        )

    def for_length(self, index: int) -> dict[str, Any]:
        """Return the parameters of one dataset folder, as its manifest holds them."""
        return {
            **asdict(self),
            "sequence_length": self.sequence_length[index],
            "max_predictions_per_seq": self.max_predictions_per_seq[index],
        }


def check_options(options: ShardOptions) -> None:
    """Raise UsageError for a value outside its range."""
    check_rule(options.sentences)
    ranges: list[tuple[str, Sequence[float], float, float]] = [
        ("sequence-length", options.sequence_length, SHORTEST_SEQUENCE, LONGEST_SEQUENCE),
        ("max-predictions", options.max_predictions_per_seq, 1, LONGEST_SEQUENCE),
        ("duplicate-factor", [options.duplicate_factor], 1, 10_000),
        ("short-sequence-probability", [options.short_sequence_probability], 0, 1),
        ("valid-fraction", [options.valid_fraction], 0, 0.9),
        ("memory-per-worker", [options.memory_per_worker], SMALLEST_MEMORY, 1 << 50),
        ("rows-per-block", [options.rows_per_block], 1, 1 << 20),
        ("blocks-per-shard", [options.blocks_per_shard], 1, 1 << 20),
    ]
    for name, values, low, high in ranges:
        for value in values:
            if not low <= value <= high:
                raise UsageError(f"--{name} {value}: must lie between {low} and {high}.")
    if len(set(options.sequence_length)) != len(options.sequence_length):
        raise UsageError(
            f"--sequence-length {' '.join(map(str, options.sequence_length))}: name a length once."
        )


@dataclass(frozen=True)
class Segment:
    """A map task: the documents of files [first, last), or part of a single file."""

    first: int
    """Number of the first file."""
    last: int
    """Equal to `first` where there is nothing to do."""
    start: int = 0
    """Of the documents, those that begin at this byte of the file or later."""
    end: int | None = None
    """Of the documents, those that begin before this byte of the file; None is its end."""


@dataclass(frozen=True)
class Plan:
    """What is to be done, as it lies in the work folder."""

    options: ShardOptions
    """All parameters that decide the bytes."""
    vocabulary: VocabularyEntry
    """The vocabulary's entry in the manifests."""
    inputs: InputSummary
    """The input files, summed up."""
    tasks: tuple[Segment, ...]
    """The map tasks, by their numbers."""
    text_bytes: int
    """About how many bytes of text there are in all files."""
    weights: tuple[tuple[int, float], ...]
    """The number of a file, and the weight that it and those after it have."""
    tool_version: str = field(default_factory=tool_version)
    """The version of this package that made the plan."""
    files_name: str = field(default="", compare=False)
    """Where in the work folder the columns of all files lie; set by `load_plan`."""

    def weights_of(self, inputs: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
        """Return the weights of some files, float64 [n], by their numbers."""
        first, weights = zip(*self.weights, strict=True)
        found = np.searchsorted(first, inputs, side="right") - 1
        return np.array(weights, np.float64)[found]

    @property
    def most_group_tokens(self) -> int:
        """Tokens that a worker can hold at once, with the rows that are made of them."""
        copies = self.options.duplicate_factor * max(weight for _, weight in self.weights)
        bytes_a_token = 12 + 90 * copies / _TOKENS_A_ROW
        return int((self.options.memory_per_worker - _PROGRAM_BYTES) / bytes_a_token)

    @property
    def num_buckets(self) -> int:
        """Fine buckets that documents are hashed into; a function of the size of the inputs."""
        wanted = min(_BUCKETS, -(-self.text_bytes // _BUCKET_BYTES))
        of_memory = -(-2 * self.text_bytes // self.most_group_tokens)  # a token is 2 bytes or more
        return max(1, min(_MOST_BUCKETS, max(wanted, of_memory)))

    def identity(self) -> dict[str, Any]:
        """Return all that decides the bytes, as plain JSON values."""
        return {
            "format_version": FORMAT_VERSION,
            "tool_version": self.tool_version,
            "vocabulary": asdict(self.vocabulary),
            "parameters": {k: _plain(v) for k, v in asdict(self.options).items()},
            "inputs": self.inputs.to_json(),
        }


def _plain(value: Any) -> Any:
    """Return `value` as it is after a round trip through JSON."""
    return list(value) if isinstance(value, tuple) else value


def make_plan(
    options: ShardOptions,
    vocabulary: VocabularyEntry,
    inputs: InputSummary,
    files: InputFiles,
    task_bytes: int | None = None,
) -> Plan:
    """Cut the inputs into map tasks.

    Args:
        options: parameters.
        vocabulary: its entry in the manifests.
        inputs: the input files, summed up.
        files: the input files.
        task_bytes: bytes of a task; None chooses by the size of the inputs. Never changes a byte
            of the result.
    """
    costs = files.sizes + FILE_BYTES
    wanted = min(max(int(costs.sum()) // _WANTED_TASKS, _SMALLEST_TASK_BYTES), _LARGEST_TASK_BYTES)
    step = task_bytes or wanted
    tasks: list[Segment] = []
    for first, last in runs(costs, step):
        tasks += _segments(options, files, first, last, step)
    weights = files.weights
    changes = np.flatnonzero(np.diff(weights, prepend=-1.0))
    return Plan(
        options,
        vocabulary,
        inputs,
        tuple(tasks),
        _text_bytes(files),
        tuple((int(first), float(weights[first])) for first in changes),
    )


def _segments(
    options: ShardOptions, files: InputFiles, first: int, last: int, step: int
) -> Iterator[Segment]:
    """Yield the tasks of some files: one for several, parts of about `step` bytes of one."""
    size = int(files.sizes[first])
    cuts = [0]
    if last == first + 1 and size > step:
        cuts += cut_points(files.path(first), options.text_format, size, step)
    for start, end in pairwise([*cuts, None]):
        yield Segment(first, last, start or 0, end)


def _text_bytes(files: InputFiles) -> int:
    """Return about how many bytes the files have once they are decompressed."""
    size = int(files.sizes.sum())
    for first in range(0, len(files), _NAMES_AT_ONCE):
        last = min(first + _NAMES_AT_ONCE, len(files))
        packed = [is_compressed(os.fsdecode(path)) for path in files.paths(first, last)]
        size += (_PACKED - 1) * int(files.sizes[first:last][np.array(packed)].sum())
    return size


def write_plan(plan: Plan, files: InputFiles, work: Path) -> None:
    """Write the plan into the work folder; an earlier plan stays valid until the last moment.

    Args:
        plan: the plan.
        files: the input files that its tasks number.
        work: the work folder.
    """
    name = write_files(files, work)
    content = {
        **plan.identity(),
        "work_version": WORK_VERSION,
        "files": name,
        "tasks": [[task.first, task.last, task.start, task.end] for task in plan.tasks],
        "text_bytes": plan.text_bytes,
        "weights": [list(entry) for entry in plan.weights],
    }
    write_json(work / PLAN_NAME, content)
    remove_other_files(work, name)


def load_plan(work: Path) -> Plan:
    """Read the plan of a work folder.

    Raises:
        DataError: it cannot be read.
    """
    path = work / PLAN_NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["work_version"] != WORK_VERSION:
            version = content["work_version"]
            raise ValueError(
                f"its work_version is {version}, that of this bert-prep {WORK_VERSION}"
            )
        parameters: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in content["parameters"].items()
        }
        return Plan(
            ShardOptions(**parameters),
            VocabularyEntry(**content["vocabulary"]),
            InputSummary.from_json(content["inputs"]),
            tuple(Segment(*task) for task in content["tasks"]),
            content["text_bytes"],
            tuple((first, weight) for first, weight in content["weights"]),
            content["tool_version"],
            content["files"],
        )
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise DataError(
            f"{path}: cannot be read ({type(err).__name__}: {err}); remove the folder {work} and "
            "run the command again."
        ) from err


def stored_files(work: Path, plan: Plan) -> StoredFiles:
    """Return the input files of a plan that was loaded."""
    return StoredFiles(work / plan.files_name)


def manifest_identity(manifest: Manifest) -> dict[str, Any]:
    """Return what decided the bytes of a finished dataset folder, as `dataset_identity` does."""
    return {
        "format_version": manifest.format_version,
        "vocabulary": asdict(manifest.vocabulary),
        "parameters": dict(manifest.parameters),
        "inputs": manifest.inputs.to_json(),
    }


def dataset_identity(plan: Plan, index: int) -> dict[str, Any]:
    """Return what decides the bytes of the dataset folder of the length at `index`."""
    identity = {**plan.identity(), "parameters": plan.options.for_length(index)}
    del identity["tool_version"]
    return identity
