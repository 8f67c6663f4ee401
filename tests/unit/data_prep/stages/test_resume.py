"""Decisions about a work folder that exists, case by case."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from data_prep.contract.manifest import VocabularyEntry
from data_prep.stages.plan import Plan, Segment, ShardOptions, make_plan
from data_prep.stages.resume import Action, SavedWork, decide, repaired_plan, with_lengths
from data_prep.text.input_files import InputFiles, summary_of
from tests.unit.data_prep.conftest import files_of

VOCABULARY = VocabularyEntry("00", 10, True, True)
OPTIONS = ShardOptions(sequence_length=(128, 512), max_predictions_per_seq=(20, 80))
FILES = files_of({f"{index}.txt": 100 for index in range(9)})
NONE = np.zeros(0, np.int64)
FOUR = np.array([4])


def plan_of(files: InputFiles, task_bytes: int | None = None) -> Plan:
    summary = summary_of(files, ["in"], [0, len(files)])
    return make_plan(OPTIONS, VOCABULARY, summary, files, task_bytes)


def changed_files() -> InputFiles:
    files = replace(FILES, digests=FILES.digests.copy())
    files.digests[4] = 255
    return files


SAME = plan_of(FILES)
CHANGED = plan_of(changed_files())
MORE = plan_of(files_of({f"{index}.txt": 100 for index in range(10)}))
OTHER = replace(SAME, vocabulary=replace(VOCABULARY, size=11))
OLDER = replace(SAME, tool_version="0.0")
ONE_LENGTH = with_lengths(SAME, [1])


@pytest.mark.parametrize(
    ("missing", "saved", "action"),
    [
        ([], None, Action.COMPLETE),
        ([], SavedWork(OTHER, NONE), Action.COMPLETE),
        ([0, 1], None, Action.START),
        ([0, 1], SavedWork(SAME, NONE), Action.CONTINUE),
        ([0, 1], SavedWork(SAME, NONE, has_groups=True), Action.CONTINUE),
        ([0, 1], SavedWork(SAME, NONE, has_input_error=True), Action.CONTINUE),
        ([1], SavedWork(SAME, NONE), Action.CONTINUE),  # it has completed a length
        ([1], SavedWork(ONE_LENGTH, NONE), Action.CONTINUE),  # another had before
        ([0], SavedWork(ONE_LENGTH, NONE), Action.REFUSE),
        ([0, 1], SavedWork(OTHER, NONE), Action.REFUSE),
        ([0, 1], SavedWork(OLDER, NONE), Action.REFUSE),
        ([0, 1], SavedWork(CHANGED, FOUR), Action.REFUSE),
        ([0, 1], SavedWork(MORE, NONE), Action.REFUSE),
        ([0, 1], SavedWork(CHANGED, FOUR, has_input_error=True), Action.REPAIR),
        ([0, 1], SavedWork(CHANGED, FOUR, True, has_groups=True), Action.RESTART),
        ([0, 1], SavedWork(MORE, NONE, has_input_error=True), Action.RESTART),
        ([0, 1], SavedWork(OTHER, NONE, has_input_error=True), Action.RESTART),
        ([0, 1], SavedWork(OLDER, NONE, has_input_error=True), Action.RESTART),
        ([0], SavedWork(replace(CHANGED, text_bytes=1 << 40), FOUR, True), Action.RESTART),
    ],
)
def test_what_is_done_about_a_work_folder(
    missing: list[int], saved: SavedWork | None, action: Action
) -> None:
    assert decide(SAME, missing, saved).action is action


def test_a_refusal_names_every_difference_to_what_was_asked_for() -> None:
    saved = SavedWork(replace(OTHER, tool_version="0.0"), NONE)
    reasons = decide(SAME, [0, 1], saved).reasons
    assert reasons[0].startswith("tool_version: 0.0 there, ")
    assert reasons[1:] == ("vocabulary size: 11 there, 10 now",)


def test_an_interrupted_preparation_keeps_its_tasks_and_gets_the_names_of_now() -> None:
    saved_plan = plan_of(FILES, task_bytes=2 * 356)
    renamed = replace(SAME, inputs=summary_of(FILES, ["elsewhere"], [0, 9]))
    decision = decide(renamed, [0, 1], SavedWork(saved_plan, NONE))
    assert decision.plan.tasks == saved_plan.tasks
    assert decision.plan.inputs.given[0].path == "elsewhere"


def test_only_the_missing_lengths_are_started() -> None:
    plan = decide(SAME, [1], None).plan
    assert plan.options.sequence_length == (512,)
    assert plan.options.max_predictions_per_seq == (80,)


def test_of_an_interrupted_plan_the_tasks_of_unchanged_files_are_kept() -> None:
    new = changed_files()
    saved_plan = plan_of(FILES, task_bytes=3 * 356)  # three files a task
    assert saved_plan.tasks == (Segment(0, 3), Segment(3, 6), Segment(6, 9))
    changed = FILES.changed(new)
    assert changed.tolist() == [4]
    plan, redone = repaired_plan(saved_plan, plan_of(new, task_bytes=4 * 356), changed)
    assert redone == (1,)
    assert plan.tasks == (
        *(Segment(0, 3), Segment(0, 0), Segment(6, 9)),
        *(Segment(3, 4), Segment(5, 6), Segment(4, 5)),
    )
    assert plan.inputs == summary_of(new, ["in"], [0, 9])
