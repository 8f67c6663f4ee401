"""What a preparation does about the work folder that it finds: decided here, done elsewhere.

Nothing in this module reads or writes a file. `data_prep.stages.work_folder` reads what is there,
asks `decide`, and does what the answer says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from data_prep.contract.differences import differences
from data_prep.contract.format import IntArray
from data_prep.stages.plan import Plan, Segment


class Action(Enum):
    """What is done about a work folder."""

    COMPLETE = "complete"
    """Nothing is left to make."""
    START = "start"
    """There is no earlier preparation; make everything."""
    CONTINUE = "continue"
    """The same preparation was interrupted; every result of it is kept."""
    REPAIR = "repair"
    """It ended at an input that was then changed; results of the other inputs are kept."""
    RESTART = "restart"
    """It ended at an input, and no result can be kept; remove it and make everything."""
    REFUSE = "refuse"
    """The unfinished preparation is another one; only the user can say what is to be done."""


@dataclass(frozen=True)
class SavedWork:
    """What an unfinished preparation has left in the work folder."""

    plan: Plan
    """Its plan."""
    changed: IntArray
    """The numbers of the files that were changed since, in increasing order; empty as well where
    there is another number of files now."""
    has_input_error: bool = False
    """Whether it ended at an input that could not be used."""
    has_groups: bool = False
    """Whether its map stage is done and the groups are made."""


@dataclass(frozen=True)
class Decision:
    """What is to be done, and all that is needed to do it."""

    action: Action
    """What is done."""
    plan: Plan
    """What is worked on from now on; of no use to `COMPLETE` and `REFUSE`."""
    tasks_to_redo: tuple[int, ...] = ()
    """For `REPAIR`, the map tasks whose results are to be removed."""
    reasons: tuple[str, ...] = ()
    """For `REFUSE`, how the unfinished preparation differs."""


def decide(new_plan: Plan, missing: Sequence[int], saved: SavedWork | None) -> Decision:
    """Return what is to be done about a work folder.

    Args:
        new_plan: what the user has asked for.
        missing: indices of the sequence lengths whose dataset folders are not complete.
        saved: what lies in the work folder; None where there is nothing.
    """
    if not missing:
        return Decision(Action.COMPLETE, new_plan)
    missing_plan = with_lengths(new_plan, missing)
    if saved is None:
        return Decision(Action.START, missing_plan)
    # The interrupted run may have completed some lengths: its plan then names these, too.
    of_missing = differences(saved.plan.identity(), missing_plan.identity())
    of_all = differences(saved.plan.identity(), new_plan.identity())
    if not of_missing or not of_all:
        # Inputs with their names as they are now, and the times by which a change is noticed.
        return Decision(Action.CONTINUE, replace(saved.plan, inputs=new_plan.inputs))
    if not saved.has_input_error:
        return Decision(Action.REFUSE, saved.plan, reasons=tuple(of_all))
    return _repair_or_restart(missing_plan, saved)


def with_lengths(plan: Plan, indices: Sequence[int]) -> Plan:
    """Return the plan for some of its sequence lengths."""
    options = plan.options
    return replace(
        plan,
        options=replace(
            options,
            sequence_length=tuple(options.sequence_length[index] for index in indices),
            max_predictions_per_seq=tuple(
                options.max_predictions_per_seq[index] for index in indices
            ),
        ),
    )


def _repair_or_restart(new_plan: Plan, saved: SavedWork) -> Decision:
    """Return how to resume after an input error where something has changed since."""
    saved_identity, new_identity = saved.plan.identity(), new_plan.identity()
    del saved_identity["inputs"], new_identity["inputs"]
    is_repairable = (
        saved_identity == new_identity
        and saved.plan.inputs.files == new_plan.inputs.files
        and saved.plan.num_buckets == new_plan.num_buckets
        and not saved.has_groups
    )
    if not is_repairable:
        return Decision(Action.RESTART, new_plan)
    repaired, tasks_to_redo = repaired_plan(saved.plan, new_plan, saved.changed)
    return Decision(Action.REPAIR, repaired, tasks_to_redo)


def repaired_plan(
    saved_plan: Plan, new_plan: Plan, changed: IntArray
) -> tuple[Plan, tuple[int, ...]]:
    """Return the plan of an interrupted preparation some of whose inputs were changed.

    A result is filed under the number of its task, so the tasks without changed inputs keep their
    numbers, and the others become empty. What these read is divided among new tasks behind all
    of them: unchanged files as the saved plan cut them, changed ones as the new plan does.

    Args:
        saved_plan: the interrupted plan.
        new_plan: the plan for the inputs as they are, as many as in the other.
        changed: the numbers of the files that have other content, in increasing order.

    Returns:
        The plan, and the numbers of the tasks whose results are of no more use.
    """
    redo = [n for n, task in enumerate(saved_plan.tasks) if _changed_in(task, changed)]
    kept = [part for n in redo for part in _unchanged_parts(saved_plan.tasks[n], changed)]
    again = [part for task in new_plan.tasks for part in _changed_parts(task, changed)]
    numbers = set(redo)
    tasks = [Segment(0, 0) if n in numbers else task for n, task in enumerate(saved_plan.tasks)]
    return replace(new_plan, tasks=(*tasks, *kept, *again)), tuple(redo)


def _changed_in(task: Segment, changed: IntArray) -> list[int]:
    """Return which of the files of a task are among the changed ones, in order."""
    first, last = np.searchsorted(changed, [task.first, task.last])
    return [int(index) for index in changed[first:last]]


def _changed_parts(task: Segment, changed: IntArray) -> Iterator[Segment]:
    """Yield what of a task lies in changed files."""
    for index in _changed_in(task, changed):
        yield replace(task, first=index, last=index + 1)


def _unchanged_parts(task: Segment, changed: IntArray) -> Iterator[Segment]:
    """Yield what of a task does not lie in changed files."""
    borders = _changed_in(task, changed)
    for first, last in zip(
        [task.first, *(n + 1 for n in borders)], [*borders, task.last], strict=True
    ):
        if first < last:
            yield replace(task, first=first, last=last)
