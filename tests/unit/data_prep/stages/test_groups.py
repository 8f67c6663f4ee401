"""Groups cover the documents, and no split stays empty."""

from __future__ import annotations

import numpy as np
import pytest

from data_prep.stages.groups import Group, Promotions, choose_promotions, group_tokens, make_groups
from data_prep.stages.map_stage import MapResult, TextSums, is_held_out
from data_prep.stages.spill import Section, section_table


def result(train: list[int], valid: list[int]) -> MapResult:
    return MapResult(section_table([]), 0, train, valid, {}, [], TextSums(), 0, 0)


def section(split: str, bucket: int, documents: int, tokens: int) -> Section:
    return Section(split == "valid", bucket, 0, documents, documents, tokens)


def groups_of(
    sections: list[Section], promotions: Promotions | None = None, most_tokens: int = 1 << 40
) -> list[Group]:
    """The groups of the sections of two map tasks, which take turns."""
    tables = [section_table(sections[0::2]), section_table(sections[1::2])]
    return list(make_groups(tables, promotions or Promotions([], []), most_tokens))


def test_the_split_follows_the_hash_of_the_text() -> None:
    hashes = np.array([0, (1 << 63) - 1, 1 << 63, 2**64 - 1], np.uint64)
    assert is_held_out(hashes, 0.5).tolist() == [True, True, False, False]
    assert not is_held_out(hashes, 0).any()


@pytest.mark.parametrize(
    ("train", "valid", "expected"),
    [
        ([5, 6, 7], [2, 1], ([], [])),  # both have two
        ([5, 6, 7, 8], [], ([5, 6], [])),  # the documents nearest to the border change sides
        ([6, 7, 8], [1], ([6], [])),
        ([9], [4, 3, 2], ([], [4])),
        ([], [4, 3, 2, 1], ([], [4, 3])),
        ([5, 6], [], ([5], [])),  # too few for two
        ([], [4, 3], ([], [4])),
        ([5], [], ([], [])),  # one document: all for training
        ([], [4], ([], [4])),
    ],
)
def test_documents_change_sides_where_a_split_would_be_empty(
    train: list[int], valid: list[int], expected: tuple[list[int], list[int]]
) -> None:
    assert choose_promotions([result(train, valid)], 0.1) == Promotions(*expected)


def test_documents_that_change_sides_do_not_depend_on_the_tasks() -> None:
    together = choose_promotions([result([5, 6, 7, 8], [])], 0.1)
    assert choose_promotions([result([6, 8], []), result([5, 7], [])], 0.1) == together


def test_no_held_out_share_moves_nothing() -> None:
    assert choose_promotions([result([5, 6, 7, 8], [])], 0) == Promotions([], [])


def test_buckets_are_joined_until_a_group_has_tokens_and_documents() -> None:
    big = 1 << 20
    sections = [
        section("train", 0, 40, big),
        section("train", 1, 3, 5 * big),
        section("train", 2, 28, 10),
        section("train", 3, 50, 10),
        section("valid", 1, 2, 5),
    ]
    found = [
        (g.split, g.number, [(task, [s.bucket for s in read]) for task, read in g.spills()])
        for g in groups_of(sections)
    ]
    assert found == [
        ("train", 0, [(0, [0])]),
        ("train", 1, [(0, [2]), (1, [1, 3])]),
        ("valid", 0, [(0, [1])]),
    ]


def test_a_bucket_that_several_tasks_have_met_is_never_split() -> None:
    sections = [section("train", bucket // 3, 11, 1 << 20) for bucket in range(12)]
    found = [
        sorted({s.bucket for _, read in group.spills() for s in read})
        for group in groups_of(sections)
    ]
    assert found == [[0], [1], [2], [3]]
    assert [len(group.tasks) for group in groups_of(sections)] == [3, 3, 3, 3]


def test_documents_that_change_sides_are_looked_for_everywhere() -> None:
    sections = [section("train", bucket, 40, 1 << 20) for bucket in range(2)]
    groups = groups_of(sections, Promotions([11, 12], []))
    assert [(g.split, len(g.tasks)) for g in groups] == [
        ("train", 1),
        ("train", 1),
        ("valid", 2),
    ]
    assert (groups[0].leaving, groups[0].arriving) == ([11, 12], [])
    assert (groups[2].leaving, groups[2].arriving) == ([], [11, 12])


def test_groups_are_as_large_as_memory_and_the_number_of_workers_allow() -> None:
    assert group_tokens(1 << 20, 1 << 30) == 1 << 19  # a small corpus: enough to mix
    assert group_tokens(1 << 32, 1 << 30) == 1 << 24  # a large one: 256 groups
    assert group_tokens(1 << 40, 1 << 22) == 1 << 21  # little memory: half of what fits
    tokens = 1 << 17
    sections = [section("train", bucket, 40, tokens) for bucket in range(16)]
    for most, expected in ((1 << 40, 4), (4 * tokens, 8), (tokens, 16)):
        assert len(groups_of(sections, most_tokens=most)) == expected
