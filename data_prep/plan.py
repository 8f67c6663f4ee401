"""The plan of a preparation: what decides its bytes, and how the inputs are cut into map tasks.

The identity (parameters, vocabulary, inputs) decides every byte of the result; the tasks do not.
The plan lies in the work folder, so that an interrupted preparation goes on with its own tasks, and
one with another identity is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from data_prep.errors import DataError, UsageError
from data_prep.files import write_json
from data_prep.format import FORMAT_VERSION
from data_prep.inputs import TextFormat, is_compressed
from data_prep.manifest import InputEntry, Manifest, VocabularyEntry
from data_prep.masking import MaskingKind
from data_prep.pairs import PairKind, PairRules, RandomNext
from data_prep.readers import cut_points
from data_prep.sentences import check_rule
from data_prep.version import tool_version

PLAN_NAME = "plan.json"
WORK_VERSION = 4
"""Version of the files of a work folder; one of another version is not gone on with."""
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
    masking: MaskingKind | Literal["none"] = "token"
    """"none" leaves the masking to the reader, who makes new masks every epoch."""
    pairs: PairKind = "next_sentence"
    random_next: RandomNext = "google"
    """Whose second segments are random; see `data_prep.pairs`."""
    short_sequence_probability: float = 0.1
    valid_fraction: float = 0.01
    """Share of the documents that are held out."""
    rows_per_block: int = 1_024
    blocks_per_shard: int = 256
    sentences: str = "rules"
    """How text is cut into sentences; see `data_prep.sentences`."""
    memory_per_worker: int = 1 << 30
    """Bytes that a worker may take; decides how the documents are grouped."""
    one_document_per_file: bool = False
    json_field: str = "text"

    @property
    def text_format(self) -> TextFormat:
        """How documents lie in the inputs."""
        return TextFormat(self.one_document_per_file, self.json_field)

    def pair_rules(self, index: int) -> PairRules:
        """How rows are made of documents for the length at `index`."""
        return PairRules(
            self.pairs,
            self.sequence_length[index],
            self.short_sequence_probability,
            self.random_next,
        )

    def for_length(self, index: int) -> dict[str, Any]:
        """The parameters of one dataset folder, as its manifest holds them."""
        return {
            **asdict(self),
            "sequence_length": self.sequence_length[index],
            "max_predictions_per_seq": self.max_predictions_per_seq[index],
        }


def check_options(options: ShardOptions) -> None:
    """UsageError for a value outside its range."""
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
    """Part of an input file: the documents that begin in [start, end)."""

    input: int
    start: int = 0
    end: int | None = None


@dataclass(frozen=True)
class Plan:
    """What is to be done, as it lies in the work folder."""

    options: ShardOptions
    vocabulary: VocabularyEntry
    inputs: tuple[InputEntry, ...]
    tasks: tuple[tuple[Segment, ...], ...]
    """Map tasks; each is some segments."""

    @property
    def most_group_tokens(self) -> int:
        """Tokens that a worker can hold at once, with the rows that are made of them."""
        copies = self.options.duplicate_factor * max(entry.weight for entry in self.inputs)
        bytes_a_token = 12 + 90 * copies / _TOKENS_A_ROW
        return int((self.options.memory_per_worker - _PROGRAM_BYTES) / bytes_a_token)

    @property
    def num_buckets(self) -> int:
        """Fine buckets that documents are hashed into; a function of the size of the inputs."""
        size = sum(
            entry.bytes * (_PACKED if is_compressed(entry.path) else 1) for entry in self.inputs
        )
        wanted = min(_BUCKETS, -(-size // _BUCKET_BYTES))
        of_memory = -(-2 * size // self.most_group_tokens)  # a token is 2 bytes or more
        return max(1, min(_MOST_BUCKETS, max(wanted, of_memory)))

    def identity(self) -> dict[str, Any]:
        """All that decides the bytes, as plain JSON values."""
        return {
            "format_version": FORMAT_VERSION,
            "tool_version": tool_version(),
            "vocabulary": asdict(self.vocabulary),
            "parameters": {k: _plain(v) for k, v in asdict(self.options).items()},
            "inputs": [entry.identity() for entry in self.inputs],
        }


def _plain(value: Any) -> Any:
    """`value` as JSON gives it back."""
    return list(value) if isinstance(value, tuple) else value


def make_plan(
    options: ShardOptions,
    vocabulary: VocabularyEntry,
    inputs: Sequence[InputEntry],
    task_bytes: int | None = None,
) -> Plan:
    """Cuts the inputs into map tasks.

    Args:
        options: parameters.
        vocabulary: its entry in the manifests.
        inputs: the input files in order.
        task_bytes: bytes of a task; None chooses by the size of the inputs. Never changes a byte
            of the result.
    """
    size = sum(entry.bytes for entry in inputs)
    wanted = min(max(size // _WANTED_TASKS, _SMALLEST_TASK_BYTES), _LARGEST_TASK_BYTES)
    step = task_bytes or wanted
    tasks: list[tuple[Segment, ...]] = []
    gathered: list[Segment] = []
    gathered_bytes = 0
    for segment, segment_bytes in _segments(options, inputs, step):
        if gathered and gathered_bytes + segment_bytes > step:
            tasks.append(tuple(gathered))
            gathered, gathered_bytes = [], 0
        gathered.append(segment)
        gathered_bytes += segment_bytes
    return Plan(options, vocabulary, tuple(inputs), (*tasks, tuple(gathered)))


def _segments(
    options: ShardOptions, inputs: Sequence[InputEntry], step: int
) -> Iterator[tuple[Segment, int]]:
    """Segments of about `step` bytes or whole files, with their sizes."""
    for index, entry in enumerate(inputs):
        cuts = [0, *cut_points(entry.path, options.text_format, entry.bytes, step)]
        for start, end in pairwise(cuts):
            yield Segment(index, start, end), end - start
        yield Segment(index, cuts[-1]), entry.bytes - cuts[-1]


def mended_plan(there: Plan, now: Plan) -> tuple[Plan, list[int]] | None:
    """The plan of an interrupted preparation some of whose inputs have other content now.

    Args:
        there: the interrupted plan.
        now: the plan for the inputs as they are.

    Returns:
        A plan that keeps the tasks without changed inputs under their numbers, and the numbers of
        tasks whose results are of no more use; None where the two differ in more.
    """
    old, new = there.identity(), now.identity()
    pairs = list(zip(old.pop("inputs"), new.pop("inputs"), strict=False))
    is_other = old != new or len(there.inputs) != len(now.inputs)
    if is_other or there.num_buckets != now.num_buckets:
        return None
    changed = {index for index, (before, after) in enumerate(pairs) if before != after}
    touched = [
        number
        for number, task in enumerate(there.tasks)
        if any(segment.input in changed for segment in task)
    ]
    of_touched = [segment for number in touched for segment in there.tasks[number]]
    kept = [segment for segment in of_touched if segment.input not in changed]
    anew = [segment for task in now.tasks for segment in task if segment.input in changed]
    tasks = [() if number in touched else task for number, task in enumerate(there.tasks)]
    return replace(now, tasks=(*tasks, *((segment,) for segment in (*kept, *anew)))), touched


def write_plan(plan: Plan, work: Path) -> None:
    """Writes the plan into the work folder."""
    tasks = [
        [[segment.input, segment.start, segment.end] for segment in task] for task in plan.tasks
    ]
    paths = [entry.path for entry in plan.inputs]
    about = {"work_version": WORK_VERSION, "paths": paths, "tasks": tasks}
    write_json(work / PLAN_NAME, {**plan.identity(), **about})


@lru_cache(maxsize=1)
def load_plan(work: Path) -> Plan:
    """Reads the plan of a work folder.

    Raises:
        DataError: it cannot be read.
    """
    path = work / PLAN_NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        parameters: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in content["parameters"].items()
        }
        return Plan(
            ShardOptions(**parameters),
            VocabularyEntry(**content["vocabulary"]),
            tuple(
                InputEntry(name, *entry)
                for name, entry in zip(content["paths"], content["inputs"], strict=True)
            ),
            tuple(tuple(Segment(*segment) for segment in task) for task in content["tasks"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise DataError(
            f"{path}: cannot be read ({type(err).__name__}: {err}); remove the folder {work} and "
            "run the command again."
        ) from err


def manifest_identity(manifest: Manifest) -> dict[str, Any]:
    """What decided the bytes of a finished dataset folder, as `dataset_identity` gives it."""
    return {
        "format_version": manifest.format_version,
        "vocabulary": asdict(manifest.vocabulary),
        "parameters": dict(manifest.parameters),
        "inputs": [entry.identity() for entry in manifest.inputs],
    }


def dataset_identity(plan: Plan, index: int) -> dict[str, Any]:
    """What decides the bytes of the dataset folder of the length at `index`."""
    identity = {**plan.identity(), "parameters": plan.options.for_length(index)}
    del identity["tool_version"]
    return identity


def differences(there: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What differs between two identities, in words."""
    found = []
    for key in sorted({*there, *now}):
        old, new = there.get(key), now.get(key)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differences(old, new, f"{key} ")
        elif key == "inputs":
            found.append(_input_difference(old or [], new or []))
        else:
            found.append(f"{prefix}{key}: {old} there, {new} now")
    return found


def _input_difference(old: Sequence[Any], new: Sequence[Any]) -> str:
    """How two lists of inputs differ, in words."""
    if len(old) != len(new):
        return f"inputs: {len(old)} files there, {len(new)} now"
    changed = [
        number for number, pair in enumerate(zip(old, new, strict=True), 1) if pair[0] != pair[1]
    ]
    return f"inputs: the content of file {', '.join(map(str, changed[:5]))} of {len(new)}"
