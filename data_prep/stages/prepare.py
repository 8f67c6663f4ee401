"""The whole preparation: plan, map, group, reduce, finalise; from where an earlier run ended.

Everything that is done is a file, so a run that was killed anywhere resumes when it is started
again, and gives the bytes of one that was not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from data_prep.contract.errors import InputError
from data_prep.contract.format import IntArray
from data_prep.contract.manifest import SPLITS, Manifest, dataset_folder
from data_prep.running.executor import Executor, Stage
from data_prep.running.files import WORK_NAME, read_work_json, write_json
from data_prep.running.progress import Progress
from data_prep.stages import map_stage, reduce_stage
from data_prep.stages.finalise import finalise
from data_prep.stages.groups import choose_promotions, group_bytes, make_groups, write_group
from data_prep.stages.job import Job
from data_prep.stages.map_stage import run_map_task
from data_prep.stages.plan import Plan, Segment, check_options, stored_files
from data_prep.stages.reduce_stage import ReduceTask, run_reduce_task
from data_prep.stages.work_folder import (
    GROUPS_DONE_NAME,
    INPUT_ERROR_NAME,
    Preparation,
    discard,
    only_one,
    ready_inputs,
    ready_plan,
)
from data_prep.text.input_files import StoredFiles

logger = logging.getLogger(__name__)

_NAMED_INPUTS = 3


Report = Callable[[Path, Manifest], None]
"""Called with a dataset folder and its manifest."""


def prepare_shards(
    preparation: Preparation, executor: Executor, report: Report | None = None
) -> list[Path]:
    """Make the dataset folders of all sequence lengths.

    Args:
        preparation: inputs, vocabulary, output and parameters.
        executor: runs the tasks; inside its `with` block.
        report: is called on the root rank for each dataset folder that this call has finished.

    Returns:
        The dataset folders.

    Raises:
        UsageError: a parameter is out of range, or an input does not exist.
        InputError: text that cannot be used, or none.
        DataError: the output folder holds something else.
        OutputError: a file cannot be written.
    """
    check_options(preparation.options)
    output = preparation.output_dir
    folders = [dataset_folder(output, length) for length in preparation.options.sequence_length]
    with only_one(output, executor):
        _prepare(preparation, folders, executor, report)
    return folders


def _prepare(
    preparation: Preparation, folders: Sequence[Path], executor: Executor, report: Report | None
) -> None:
    """Run all stages that are not done yet."""
    work = preparation.output_dir / WORK_NAME
    clock = preparation.clock
    with clock.stage("plan"):
        is_needed = _plan(preparation, executor)
    if not is_needed:
        return
    job = Job(work)
    try:
        with clock.stage("map"):
            _map(job, executor)
    except InputError as err:
        if executor.is_root:
            write_json(work / INPUT_ERROR_NAME, {"error": str(err)})
        raise
    try:
        with clock.stage("group"):
            tasks = executor.on_root(lambda: _group(job))
        with clock.stage("reduce"):
            _reduce(job, tasks, executor)
        with clock.stage("finalise"):
            executor.on_root(lambda: _finalise(job, tasks, report))
    except InputError:  # the text holds nothing: other text has no use for what was done
        if executor.is_root:
            discard(work, folders)
        raise


def _plan(preparation: Preparation, executor: Executor) -> bool:
    """Write the plan into the work folder; return False where there is nothing to do."""
    inputs = ready_inputs(preparation, executor)
    return executor.on_root(lambda: inputs is not None and ready_plan(preparation, inputs))


def _finalise(job: Job, tasks: Sequence[ReduceTask], report: Report | None) -> None:
    """Run the last stage and report its results."""
    for manifest in finalise(job, tasks):
        if report is not None:
            report(dataset_folder(job.work.parent, manifest.sequence_length), manifest)


def _map(job: Job, executor: Executor) -> None:
    """Run the map stage."""
    work, plan = job.work, job.plan
    everything = range(len(plan.tasks))
    # Asked once: two ranks that look at different times would share different lists.
    begun = set(executor.on_root(lambda: [t for t in everything if map_stage.is_begun(work, t)]))
    files = stored_files(work, plan)
    sizes = _task_bytes(plan.tasks, files.sizes())
    # Those that are only to be checked first, then large ones, so that all end together.
    ordered = sorted(everything, key=lambda task: (task not in begun, -sizes[task]))
    with Progress("map", sum(sizes), "B", executor.is_root) as progress:
        progress.start_at(sum(sizes[task] for task in begun))
        executor.run(
            Stage(
                run_map_task,
                job,
                ordered,
                done=lambda task: progress.advance(0 if task in begun else sizes[task]),
                describe=lambda task: _task_in_words(files, plan.tasks[task]),
            )
        )


def _task_in_words(files: StoredFiles, task: Segment) -> str:
    """Return the inputs of a map task, in words."""
    named = files.part(task.first, min(task.last, task.first + _NAMED_INPUTS))
    end = "the end" if task.end is None else task.end
    names = [f"{named.path(index)} (bytes {task.start} to {end})" for index in range(len(named))]
    more = task.last - task.first - len(named)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _task_bytes(tasks: Sequence[Segment], sizes: IntArray) -> list[int]:
    """Return the bytes of input that each map task reads."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    return [
        (int(ends[task.last] - ends[task.first]) if task.end is None else task.end) - task.start
        for task in tasks
    ]


def _group(job: Job) -> list[ReduceTask]:
    """Decide the reduce tasks, once all map tasks are done."""
    work, plan = job.work, job.plan
    if not (work / GROUPS_DONE_NAME).is_file():
        _make_groups(work, plan)
    numbers = read_work_json(work / GROUPS_DONE_NAME)
    return [
        ReduceTask(split, number, index)
        for index in reversed(range(len(plan.options.sequence_length)))
        for split in SPLITS
        for number in range(numbers[split])
    ]


def _make_groups(work: Path, plan: Plan) -> None:
    """Write the groups, and last how many each split has."""
    results = [
        map_stage.load_result(work, task)._replace(unknown_characters={})  # finalise counts them
        for task in range(len(plan.tasks))
    ]
    if not any(len(result.sections) for result in results):
        skipped = sum(result.skipped for result in results)
        raise InputError(
            f"--input: {plan.inputs.files} files and no document with text in them "
            f"({skipped} documents without a piece); give files that hold text."
        )
    skipped = sum(result.skipped for result in results)
    if skipped:
        logger.info("%d documents without a single piece are left out", skipped)
    promotions = choose_promotions(results, plan.options.valid_fraction)
    numbers = dict.fromkeys(SPLITS, 0)
    tables = [result.sections for result in results]
    for group in make_groups(tables, promotions, plan.most_group_tokens):
        write_group(work, group)
        numbers[group.split] += 1
    write_json(work / GROUPS_DONE_NAME, numbers)


def _reduce(job: Job, tasks: Sequence[ReduceTask], executor: Executor) -> None:
    """Run the reduce stage."""
    work = job.work
    begun = set(executor.on_root(lambda: [t for t in tasks if reduce_stage.is_begun(work, t)]))
    groups = {(task.split, task.number) for task in tasks}
    sizes = executor.on_root(lambda: {group: group_bytes(work, *group) for group in groups})
    total = sum(sizes[task.split, task.number] for task in tasks)
    with Progress("reduce", total, "B", executor.is_root) as progress:
        progress.start_at(sum(sizes[task.split, task.number] for task in begun))
        executor.run(
            Stage(
                run_reduce_task,
                job,
                sorted(tasks, key=lambda task: task not in begun),
                done=lambda task: progress.advance(
                    0 if task in begun else sizes[task.split, task.number]
                ),
                describe=lambda task: _reduce_in_words(job.plan, task),
            )
        )


def _reduce_in_words(plan: Plan, task: ReduceTask) -> str:
    """Return a reduce task by the name of its shards."""
    length = plan.options.sequence_length[task.length_index]
    return f"{dataset_folder(Path(), length)}/{task.split}-{task.number:05d}"
