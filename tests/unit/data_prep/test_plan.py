"""Tasks cover the inputs; identities are compared in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_prep.errors import DataError, UsageError
from data_prep.inputs import hash_input
from data_prep.manifest import VocabularyEntry
from data_prep.plan import (
    ShardOptions,
    check_options,
    differences,
    load_plan,
    make_plan,
    write_plan,
)

VOCABULARY = VocabularyEntry("00", 10, True, True)
OPTIONS = ShardOptions(sequence_length=(128,), max_predictions_per_seq=(20,))


def test_tasks_cover_every_byte_once_and_small_files_share_a_task(tmp_path: Path) -> None:
    sizes = {"a.txt": 5000, "b.txt": 10, "c.txt": 10, "d.txt": 3000}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"word word\n\n" * (size // 11))
    inputs = [hash_input(str(tmp_path / name)) for name in sizes]
    plan = make_plan(OPTIONS, VOCABULARY, inputs, task_bytes=1000)
    assert len(plan.tasks) > 6
    for index in range(4):
        segments = [s for task in plan.tasks for s in task if s.input == index]
        assert segments[0].start == 0
        assert segments[-1].end is None
        assert [s.end for s in segments[:-1]] == [s.start for s in segments[1:]]
    assert any({s.input for s in task} >= {1, 2} for task in plan.tasks)


def test_a_plan_comes_back_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"word\n\n" * 100)
    plan = make_plan(OPTIONS, VOCABULARY, [hash_input(str(tmp_path / "a.txt"))], task_bytes=100)
    write_plan(plan, tmp_path)
    load_plan.cache_clear()
    assert load_plan(tmp_path) == plan
    (tmp_path / "plan.json").write_text("{", encoding="utf-8")
    load_plan.cache_clear()
    with pytest.raises(DataError, match="remove the folder"):
        load_plan(tmp_path)


def test_differences_are_said_in_words() -> None:
    there = {"parameters": {"seed": 0, "pairs": "x"}, "inputs": [[1, "a"], [2, "b"]]}
    assert differences(there, there) == []
    now = {"parameters": {"seed": 1, "pairs": "x"}, "inputs": [[1, "a"], [2, "c"]]}
    assert differences(there, now) == [
        "inputs: the content of file 2 of 2",
        "parameters seed: 0 there, 1 now",
    ]
    assert differences({"inputs": []}, now) == [
        "inputs: 0 files there, 2 now",
        "parameters: None there, {'seed': 1, 'pairs': 'x'} now",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence_length": (4,)}, "--sequence-length 4: must lie between 8 and 65535"),
        ({"sequence_length": (70_000,)}, "--sequence-length 70000"),
        ({"sequence_length": (128, 128)}, "name a length once"),
        ({"max_predictions_per_seq": (0,)}, "--max-predictions 0"),
        ({"duplicate_factor": 0}, "--duplicate-factor 0"),
        ({"valid_fraction": 1.0}, "--valid-fraction 1.0"),
        ({"valid_fraction": float("nan")}, "--valid-fraction nan"),
        ({"short_sequence_probability": -0.1}, "--short-sequence-probability -0.1"),
        ({"rows_per_block": 0}, "--rows-per-block 0"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, object], message: str) -> None:
    defaults: dict[str, object] = {"sequence_length": (128,), "max_predictions_per_seq": (20,)}
    with pytest.raises(UsageError, match=message):
        check_options(ShardOptions(**{**defaults, **options}))
