"""Between map and reduce: which fine buckets a reduce task takes, and that no split stays empty.

A group is some buckets that follow each other: enough tokens to be worth a task, enough documents
to find partners for pairs. It is a function of the documents alone, so it is the same whatever the
map tasks were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from data_prep.contract.manifest import SPLITS
from data_prep.running.files import read_work_json, write_work_json
from data_prep.stages.map_stage import NAMED_HASHES, MapResult
from data_prep.stages.spill import Section, section_table

_SMALLEST_GROUP_TOKENS = 1 << 19
_WANTED_GROUPS = 256
_GROUP_DOCUMENTS = 32


@dataclass(frozen=True)
class Group:
    """The input of one reduce task."""

    split: str
    """The split whose rows it makes."""
    number: int
    """Number in the split."""
    tasks: npt.NDArray[np.int64]
    """int64 [n]: the map task of each section."""
    sections: npt.NDArray[Any]
    """[n], a table as `spill.section_table` makes it."""
    arriving: list[int]
    """Content hashes of the documents to take from sections of the other split."""
    leaving: list[int]
    """Content hashes of the documents to leave out in sections of this one."""

    def spills(self) -> Iterator[tuple[int, list[Section]]]:
        """Yield the map tasks with the sections to read in their spills, by increasing offset."""
        order = np.lexsort((self.sections["offset"], self.tasks))
        tasks = self.tasks[order]
        rows = [Section(*section) for section in self.sections[order].tolist()]
        borders = np.flatnonzero(np.diff(tasks, prepend=-1)).tolist()
        for first, last in pairwise([*borders, len(rows)]):
            yield int(tasks[first]), rows[first:last]


class Promotions(NamedTuple):
    """Texts that change sides so that both splits hold some."""

    to_valid: list[int]
    """Content hashes of texts that go from training to held out."""
    to_train: list[int]
    """Content hashes of texts that go from held out to training."""


def choose_promotions(results: Iterable[MapResult], valid_fraction: float) -> Promotions:
    """Make sure that each split has two different documents, or one where there are few.

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
    """Return the tokens of a group: enough to mix, few enough for memory and many workers."""
    wanted = max(total_tokens // _WANTED_GROUPS, _SMALLEST_GROUP_TOKENS)
    return min(wanted, most_tokens // 2)  # a last group may take in nearly another one


def make_groups(
    tables: Sequence[npt.NDArray[Any]], promotions: Promotions, most_tokens: int
) -> Iterator[Group]:
    """Yield the reduce tasks of all splits, train first.

    Args:
        tables: the sections of all map tasks, in their order.
        promotions: texts that change sides.
        most_tokens: tokens of a group, as memory allows.
    """
    sections = np.concatenate(tables)
    tasks = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    order = np.argsort(sections["bucket"], kind="stable")
    sections, tasks = sections[order], tasks[order]
    wanted = group_tokens(int(sections["tokens"].sum(dtype=np.int64)), most_tokens)
    for split in SPLITS:
        arriving = promotions.to_valid if split == "valid" else promotions.to_train
        leaving = promotions.to_train if split == "valid" else promotions.to_valid
        read = np.flatnonzero((sections["is_valid"] == (split == "valid")) | bool(arriving))
        spans = [(0, len(read))] if arriving else _gather(sections[read], wanted)
        for number, (start, end) in enumerate(spans):
            rows = read[start:end]
            yield Group(split, number, tasks[rows], sections[rows], arriving, leaving)


def _gather(sections: npt.NDArray[Any], wanted: int) -> list[tuple[int, int]]:
    """Join buckets until a group is large enough; a small rest goes to the last group.

    Returns:
        First section of each group, and the one after its last.
    """
    spans: list[tuple[int, int]] = []
    begin = 0
    buckets = sections["bucket"].astype(np.int64)
    tokens = np.concatenate([[0], np.cumsum(sections["tokens"], dtype=np.int64)])
    documents = np.concatenate([[0], np.cumsum(sections["documents"], dtype=np.int64)])
    for end in np.flatnonzero(np.diff(buckets, prepend=-1, append=-1))[1:].tolist():
        has_text = tokens[end] - tokens[begin] >= wanted
        if has_text and documents[end] - documents[begin] >= _GROUP_DOCUMENTS:
            spans.append((begin, end))
            begin = end
    if begin < len(sections):
        first = spans.pop()[0] if spans else begin
        spans.append((first, len(sections)))
    return spans


def group_path(work: Path, split: str, number: int) -> Path:
    """Return the path of a group in the work folder.

    Args:
        work: the work folder.
        split: "train" or "valid".
        number: number of the group in its split.
    """
    return work / "groups" / f"{split}-{number:05d}.json"


def write_group(work: Path, group: Group) -> None:
    """Write a group for the reduce tasks."""
    content = {
        "bytes": 2 * int(group.sections["tokens"].sum(dtype=np.int64)),
        "tasks": group.tasks.tolist(),
        "sections": group.sections.tolist(),
        "arriving": group.arriving,
        "leaving": group.leaving,
    }
    write_work_json(group_path(work, group.split, group.number), content)


def group_bytes(work: Path, split: str, number: int) -> int:
    """Return about how many bytes of pieces a group holds.

    Args:
        work: the work folder.
        split: "train" or "valid".
        number: number of the group in its split.
    """
    content = read_work_json(group_path(work, split, number))
    return int(content["bytes"])


def load_group(work: Path, split: str, number: int) -> Group:
    """Read a group.

    Args:
        work: the work folder.
        split: "train" or "valid".
        number: number of the group in its split.
    """
    content = read_work_json(group_path(work, split, number))
    tasks, table = np.array(content["tasks"], np.int64), section_table(content["sections"])
    return Group(split, number, tasks, table, content["arriving"], content["leaving"])
