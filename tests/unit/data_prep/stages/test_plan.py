"""Tasks cover the inputs; options are checked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_prep.contract.errors import DataError, UsageError
from data_prep.contract.manifest import VocabularyEntry
from data_prep.stages import plan as plan_module
from data_prep.stages.plan import (
    Plan,
    Segment,
    ShardOptions,
    check_options,
    load_plan,
    make_plan,
    stored_files,
    write_plan,
)
from data_prep.text.input_files import InputFiles, summary_of
from data_prep.text.input_hashes import hash_here
from data_prep.text.inputs import find_inputs
from tests.unit.data_prep.conftest import files_of

VOCABULARY = VocabularyEntry("00", 10, True, True)
OPTIONS = ShardOptions(sequence_length=(128,), max_predictions_per_seq=(20,))


def plan_of(files: InputFiles, task_bytes: int | None = None) -> Plan:
    return make_plan(
        OPTIONS, VOCABULARY, summary_of(files, ["in"], [0, len(files)]), files, task_bytes
    )


def test_tasks_cover_every_byte_once_and_small_files_share_a_task(tmp_path: Path) -> None:
    sizes = {"a.txt": 5000, "b.txt": 10, "c.txt": 10, "d.txt": 3000}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"word word\n\n" * (size // 11))
    files = hash_here(find_inputs([str(tmp_path)]).files, lambda size: None)
    tasks = plan_of(files, task_bytes=1000).tasks
    assert len(tasks) > 6
    for index in range(4):
        segments = [task for task in tasks if task.first <= index < task.last]
        assert segments[0].start == 0
        assert segments[-1].end is None
        assert [s.end for s in segments[:-1]] == [s.start for s in segments[1:]]
    assert Segment(1, 3) in tasks


def test_the_plan_does_not_grow_with_the_files_and_is_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, asked = [], []
    real = plan_module.is_compressed
    monkeypatch.setattr(plan_module, "is_compressed", lambda path: asked.append(path) or real(path))
    for number in (10, 10_000):
        files = files_of({f"folder/{index:08d}.txt.gz": 100 for index in range(number)})
        plan = plan_of(files)
        for _ in range(10):
            assert plan.num_buckets == -(-number * 500 // (1 << 20))
            assert plan.most_group_tokens > 1 << 20
        write_plan(plan, files, tmp_path)
        sizes.append((tmp_path / "plan.json").stat().st_size)
        (columns,) = tmp_path.glob("inputs-*.bin")  # those of the plan before are gone
        assert columns.stat().st_size == 16 + number * (64 + len("folder/00000000.txt.gz"))
    assert len(asked) == 10_010
    assert sizes[1] < sizes[0] + 100
    many = plan_of(files_of({f"{index}.txt": 10 for index in range(100_000)}))
    assert len(many.tasks) == 13  # 266 bytes a file, 2 MiB a task


def test_each_file_has_the_weight_of_the_path_it_lies_in() -> None:
    files = replace(files_of(dict.fromkeys("abcdef", 1)), weights=np.array([1, 1, 3, 3, 0.5, 1]))
    plan = plan_of(files)
    assert plan.weights == ((0, 1.0), (2, 3.0), (4, 0.5), (5, 1.0))
    wanted = np.array([5, 3, 0, 1, 2, 4, 4], np.uint32)
    assert plan.weights_of(wanted).tolist() == [1, 3, 1, 1, 3, 0.5, 0.5]
    assert (
        plan.most_group_tokens == plan_of(replace(files, weights=np.full(6, 3.0))).most_group_tokens
    )


def test_a_plan_comes_back_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"word\n\n" * 100)
    files = hash_here(find_inputs([str(tmp_path)]).files, lambda size: None)
    plan = plan_of(files, task_bytes=100)
    write_plan(plan, files, tmp_path)
    assert load_plan(tmp_path) == plan
    stored = stored_files(tmp_path, load_plan(tmp_path))
    assert stored.part(0, 1).path(0) == str(tmp_path / "a.txt")
    content = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    for damaged in ("{", json.dumps({**content, "work_version": 3})):
        (tmp_path / "plan.json").write_text(damaged, encoding="utf-8")
        with pytest.raises(DataError, match="remove the folder"):
            load_plan(tmp_path)


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
