"""Between map and reduce: which fine buckets a reduce task takes, and that no split stays empty.

A group is some buckets that follow each other: enough tokens to be worth a task, enough documents
to find partners for pairs. It is a function of the documents alone, so it is the same whatever the
map tasks were.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from data_prep.files import read_work_json, write_work_json
from data_prep.manifest import SPLITS
from data_prep.map_stage import NAMED_HASHES, MapResult
from data_prep.spill import Section

_SMALLEST_GROUP_TOKENS = 1 << 19
_WANTED_GROUPS = 256
_GROUP_DOCUMENTS = 32


class Source(NamedTuple):
    """A section that a group reads, and which of its documents it takes."""

    task: int
    section: Section
    only: list[int] | None
    """Content hashes to take; None takes all."""
    without: list[int]
    """Content hashes to leave out."""


@dataclass(frozen=True)
class Group:
    """The input of one reduce task."""

    split: str
    number: int
    sources: list[Source]


class Promotions(NamedTuple):
    """Texts that change sides so that both splits hold some."""

    to_valid: list[int]
    to_train: list[int]


def choose_promotions(results: Iterable[MapResult], valid_fraction: float) -> Promotions:
    """Makes sure that each split has two different documents, or one where there are few.

    Args:
        results: of all map tasks.
        valid_fraction: 0 leaves the valid split empty.

    Returns:
        Nothing to change in the usual case. With one document (or many equal ones) all is for
        training, and the valid split stays empty.
    """
    results = list(results)
    train = sorted({value for result in results for value in result.lowest_train})[:NAMED_HASHES]
    valid = sorted({value for result in results for value in result.highest_valid})[::-1]
    valid = valid[:NAMED_HASHES]
    distinct = len(train) + len(valid)
    if valid_fraction == 0 or distinct < 2:
        return Promotions([], valid)
    needed = 2 if distinct >= 4 else 1
    return Promotions(train[: max(0, needed - len(valid))], valid[: max(0, needed - len(train))])


def group_tokens(total_tokens: int, most_tokens: int) -> int:
    """Tokens that a group gathers: enough to mix, few enough for memory and for many workers."""
    wanted = max(total_tokens // _WANTED_GROUPS, _SMALLEST_GROUP_TOKENS)
    return min(wanted, most_tokens // 2)  # a last group may take in nearly another one


def make_groups(
    results: Sequence[MapResult], promotions: Promotions, most_tokens: int
) -> list[Group]:
    """The reduce tasks of all splits, train first.

    Args:
        results: of all map tasks.
        promotions: texts that change sides.
        most_tokens: tokens of a group, as memory allows.
    """
    total = sum(section.tokens for result in results for section in result.sections)
    wanted = group_tokens(total, most_tokens)
    groups = []
    for split in SPLITS:
        arriving = promotions.to_valid if split == "valid" else promotions.to_train
        leaving = promotions.to_train if split == "valid" else promotions.to_valid
        buckets: dict[int, list[Source]] = defaultdict(list)
        for task, result in enumerate(results):
            for section in result.sections:
                if section.split == split:
                    buckets[section.bucket].append(Source(task, section, None, leaving))
                elif arriving:
                    buckets[section.bucket].append(Source(task, section, arriving, []))
        ordered = [buckets[bucket] for bucket in sorted(buckets)]
        gathered = [list(chain.from_iterable(ordered))] if arriving else _gather(ordered, wanted)
        groups += [Group(split, number, sources) for number, sources in enumerate(gathered)]
    return groups


def _gather(buckets: Iterable[list[Source]], wanted: int) -> list[list[Source]]:
    """Joins buckets until a group is large enough; a small rest goes to the last group."""
    groups: list[list[Source]] = []
    gathered: list[Source] = []
    tokens = documents = 0
    for sources in buckets:
        gathered += sources
        tokens += sum(source.section.tokens for source in sources)
        documents += sum(source.section.documents for source in sources)
        if tokens >= wanted and documents >= _GROUP_DOCUMENTS:
            groups.append(gathered)
            gathered, tokens, documents = [], 0, 0
    if gathered and groups:
        groups[-1] = groups[-1] + gathered
        return groups
    return [gathered] if gathered else groups


def group_path(work: Path, split: str, number: int) -> Path:
    """The file of a group in the work folder."""
    return work / "groups" / f"{split}-{number:05d}.json"


def write_group(work: Path, group: Group) -> None:
    """Writes a group for the reduce tasks."""
    sources = [
        [source.task, list(source.section), source.only, source.without] for source in group.sources
    ]
    size = 2 * sum(source.section.tokens for source in group.sources)
    write_work_json(
        group_path(work, group.split, group.number), {"bytes": size, "sources": sources}
    )


def group_bytes(work: Path, split: str, number: int) -> int:
    """About how many bytes of pieces a group holds."""
    content = read_work_json(group_path(work, split, number))
    return int(content["bytes"])


def load_group(work: Path, split: str, number: int) -> Group:
    """Reads a group."""
    content = read_work_json(group_path(work, split, number))
    sources = [
        Source(task, Section(*section), only, without)
        for task, section, only, without in content["sources"]
    ]
    return Group(split, number, sources)
