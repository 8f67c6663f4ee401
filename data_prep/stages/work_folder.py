"""The work folder of a preparation: started, resumed, repaired, refused, removed.

It lies in the output folder and holds the plan and the result of every task. A run holds a lock on
its output folder. What is done about a work folder that exists is decided in
`data_prep.stages.resume`.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from data_prep.contract.differences import differences
from data_prep.contract.errors import DataError, UsageError
from data_prep.contract.format import IntArray
from data_prep.contract.manifest import (
    MANIFEST_NAME,
    SPLITS,
    VOCABULARY_NAME,
    InputSummary,
    VocabularyEntry,
    dataset_folder,
    load_manifest,
)
from data_prep.contract.storage import TEMPORARY_SUFFIX
from data_prep.contract.wordpiece import Vocabulary
from data_prep.running.executor import CLAIMS_NAME, RUNNING_NAME, Executor, was_running
from data_prep.running.files import WORK_NAME, atomic_file, make_folder
from data_prep.running.progress import Progress
from data_prep.running.timings import StageClock
from data_prep.stages import map_stage
from data_prep.stages.plan import (
    PLAN_NAME,
    Plan,
    ShardOptions,
    dataset_identity,
    load_plan,
    make_plan,
    manifest_identity,
    stored_files,
    write_plan,
)
from data_prep.stages.resume import Action, Decision, SavedWork, decide
from data_prep.text.input_files import InputFiles, is_of_files, summary_of
from data_prep.text.input_hashes import hash_files, hash_items, with_digests
from data_prep.text.inputs import FoundInputs, find_inputs

logger = logging.getLogger(__name__)

GROUPS_DONE_NAME = "groups.json"
INPUT_ERROR_NAME = "input_error.json"
"""What was wrong with an input; such a work folder is resumed after the input was changed."""
_HIGHEST_WEIGHT = 1_000
_NAMED = 5
_WORK_FOLDERS = ("map", "groups", "reduce")


@dataclass(frozen=True)
class Preparation:
    """What `prepare_shards` is to make, and from what."""

    inputs: Sequence[str]
    """Files and folders."""
    vocabulary_path: Path
    """The vocabulary file, which is copied into every dataset folder."""
    vocabulary: Vocabulary
    """The vocabulary in that file, and how text is normalised."""
    output_dir: Path
    """The folder that gets a dataset folder for each sequence length."""
    options: ShardOptions
    """All other parameters that decide the bytes."""
    task_bytes: int | None = None
    """Bytes of a map task; None chooses. Never changes a byte of the result."""
    weights: Sequence[float] | None = None
    """How often the documents of each of `inputs` are used, as a multiple of the duplicate
    factor; None is once for all."""
    clock: StageClock = field(default_factory=StageClock)
    """The clock that sums the time of the stages."""


@contextmanager
def only_one(output: Path, executor: Executor) -> Iterator[None]:
    """Hold the output folder for this run; the lock ends with the process that holds it."""
    descriptor = executor.on_root(lambda: _lock(output))
    try:
        yield
    finally:
        if executor.is_root and descriptor is not None:
            os.close(descriptor)


def _lock(output: Path) -> int | None:
    """Return an open descriptor with a lock on the output folder; None without support."""
    make_folder(output)
    descriptor = os.open(output, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as err:
        os.close(descriptor)
        raise DataError(
            f"{output}: another bert-prep is at work in this folder; wait for it, or choose "
            "another --output-dir."
        ) from err
    except OSError as err:
        os.close(descriptor)
        logger.info("%s: no lock (%s); start no second run in this folder", output, err.strerror)
        return None
    return descriptor


@dataclass(frozen=True)
class Inputs:
    """The input files."""

    files: InputFiles
    """The files, with their checksums and weights."""
    summary: InputSummary
    """Their summary, as manifests hold it."""


def ready_inputs(preparation: Preparation, executor: Executor) -> Inputs | None:
    """Find the inputs in the root process, and take their checksums on all workers.

    Returns:
        The inputs in the root process, None in the others.

    Raises:
        UsageError: see `find_inputs`, or weights that do not fit.
        InputError: a file cannot be read.
    """
    found: list[FoundInputs] = []
    executor.on_root(lambda: found.append(_found(preparation)))
    items = hash_items(found[0].files) if found else []
    size = sum(item.bytes for item in items)
    with Progress("inputs", size, "B", executor.is_root) as progress:
        digests = executor.gather(hash_files, items, lambda item: progress.advance(item.bytes))
    if not found:
        return None
    files = with_digests(found[0].files, digests)
    return Inputs(files, summary_of(files, preparation.inputs, found[0].first))


def _found(preparation: Preparation) -> FoundInputs:
    """Return the input files with their weights."""
    weights = _weights(preparation)
    apart = [preparation.output_dir, preparation.vocabulary_path]
    found = find_inputs(preparation.inputs, apart)
    of_files = np.repeat(np.array(weights, np.float64), np.diff(found.first))
    return found._replace(files=replace(found.files, weights=of_files))


def ready_plan(preparation: Preparation, inputs: Inputs) -> bool:
    """Write the plan to work on into the work folder; return False where all is done already.

    Raises:
        DataError: the output folder holds something else.
    """
    vocabulary = preparation.vocabulary
    entry = VocabularyEntry(
        vocabulary.sha256, len(vocabulary), vocabulary.lowercase, vocabulary.strip_accents
    )
    plan = make_plan(
        preparation.options, entry, inputs.summary, inputs.files, preparation.task_bytes
    )
    missing = [
        index
        for index in range(len(plan.options.sequence_length))
        if not _is_complete(preparation.output_dir, plan, index)
    ]
    work = preparation.output_dir / WORK_NAME
    saved = _saved_work(work, plan, inputs.files) if missing else None
    decision = decide(plan, missing, saved)
    _carry_out(decision, saved, inputs.files, preparation)
    return decision.action is not Action.COMPLETE


def _saved_work(work: Path, new_plan: Plan, files: InputFiles) -> SavedWork | None:
    """Read what an unfinished preparation has left; None where there is no plan of one."""
    if not (work / PLAN_NAME).is_file():
        return None
    plan = load_plan(work)
    changed: IntArray = np.zeros(0, np.int64)
    if plan.inputs != new_plan.inputs and plan.inputs.files == len(files):
        changed = stored_files(work, plan).part(0, len(files)).changed(files)
    return SavedWork(
        plan,
        changed,
        has_input_error=(work / INPUT_ERROR_NAME).is_file(),
        has_groups=(work / GROUPS_DONE_NAME).is_file(),
    )


def _carry_out(
    decision: Decision, saved: SavedWork | None, files: InputFiles, preparation: Preparation
) -> None:
    """Do what was decided about the work folder."""
    work = preparation.output_dir / WORK_NAME
    if decision.action is Action.COMPLETE:
        _discard_finished(work)
    elif decision.action is Action.START or saved is None:
        _start(work, decision.plan, files, preparation.vocabulary_path)
    elif decision.action is Action.CONTINUE:
        write_plan(decision.plan, files, work)
        _log_what_was_running(work)
        _remove_temporary(work)
        logger.info("%s: resuming an interrupted preparation", work.parent)
    elif decision.action is Action.REPAIR:
        _repair(work, decision, len(saved.plan.tasks), files)
    elif decision.action is Action.RESTART:
        logger.info("%s: other inputs or parameters than before, starting again", work.parent)
        lengths = saved.plan.options.sequence_length
        discard(work, [dataset_folder(work.parent, length) for length in lengths])
        _start(work, decision.plan, files, preparation.vocabulary_path)
    else:
        reasons = list(decision.reasons)
        if len(saved.changed):
            names = ", ".join(files.path(int(index)) for index in saved.changed[:_NAMED])
            reasons.append(f"changed files: {names}")
        raise DataError(_refusal(work, "an unfinished preparation", reasons))


def _repair(work: Path, decision: Decision, num_saved_tasks: int, files: InputFiles) -> None:
    """Remove the results of changed inputs, then write the repaired plan.

    The mark of the input error goes last: until then a run that is killed here is repaired again.
    """
    for number in decision.tasks_to_redo:
        map_stage.result_path(work, number).unlink(missing_ok=True)
    _remove_temporary(work)
    logger.info(
        "%s: inputs have changed; %d of %d map tasks are done again",
        work.parent,
        len(decision.tasks_to_redo),
        num_saved_tasks,
    )
    write_plan(decision.plan, files, work)
    (work / INPUT_ERROR_NAME).unlink()


def _weights(preparation: Preparation) -> Sequence[float]:
    """Return the weight of each of the inputs as given; raise UsageError where they do not fit."""
    weights = preparation.weights
    if weights is None:
        return [1.0] * len(preparation.inputs)
    if len(weights) != len(preparation.inputs):
        raise UsageError(
            f"--weights has {len(weights)} values, --input {len(preparation.inputs)}; give one for "
            "each file or folder named."
        )
    for weight in weights:
        if not 0 < weight <= _HIGHEST_WEIGHT:
            raise UsageError(
                f"--weights {weight:g}: must be above 0 and at most {_HIGHEST_WEIGHT}."
            )
    return weights


def _discard_finished(work: Path) -> None:
    """Remove what is left of a work folder whose removal was interrupted."""
    if (work / PLAN_NAME).is_file():
        lengths = load_plan(work).options.sequence_length
        if not all(
            (dataset_folder(work.parent, length) / MANIFEST_NAME).exists() for length in lengths
        ):
            return
    _remove_work(work)


def _remove_work(work: Path) -> None:
    """Remove a work folder that is of no use; raise DataError where it holds foreign files."""
    if not work.exists():
        return
    ours = {PLAN_NAME, GROUPS_DONE_NAME, VOCABULARY_NAME, INPUT_ERROR_NAME, *_WORK_FOLDERS}
    ours |= {RUNNING_NAME, CLAIMS_NAME}
    names = {path.name for path in work.iterdir() if not path.name.endswith(TEMPORARY_SUFFIX)}
    foreign = sorted(name for name in names - ours if not is_of_files(name))
    if foreign:
        raise DataError(
            f"{work}: holds {', '.join(foreign[:3])}, which is none of bert-prep's; "
            "the preparation needs this name, choose another --output-dir."
        )
    shutil.rmtree(work)


def _is_complete(output: Path, plan: Plan, index: int) -> bool:
    """Return whether the folder of a length is finished; raise DataError if made otherwise."""
    folder = dataset_folder(output, plan.options.sequence_length[index])
    if not (folder / MANIFEST_NAME).exists():
        return False
    manifest = load_manifest(folder)
    found = differences(manifest_identity(manifest), dataset_identity(plan, index))
    if found:
        raise DataError(_refusal(folder, "a dataset", found))
    for shard in (shard for split in SPLITS for shard in manifest.shards(split)):
        path = folder / shard.file
        if not path.is_file() or path.stat().st_size != shard.bytes:
            raise DataError(
                f"{path}: missing or not of the {shard.bytes} bytes the manifest names; remove "
                f"{folder} and run the command again."
            )
    logger.info("%s is complete and made from the same inputs and parameters", folder)
    return True


def _refusal(folder: Path, what: str, found: Sequence[str]) -> str:
    """Return the message that `folder` holds something made otherwise."""
    return (
        f"{folder}: holds {what} made otherwise ({'; '.join(found)}); give the same parameters, "
        f"choose another --output-dir, or remove {folder}."
    )


def _remove_temporary(work: Path) -> None:
    """Remove what a killed run was writing, and what it has left about its running tasks."""
    for folder in (work, *(work / name for name in _WORK_FOLDERS)):
        for path in folder.glob(f".*{TEMPORARY_SUFFIX}"):
            path.unlink(missing_ok=True)
    for name in (RUNNING_NAME, CLAIMS_NAME):
        shutil.rmtree(work / name, ignore_errors=True)


def _log_what_was_running(work: Path) -> None:
    """Log which tasks a killed run was working on."""
    running = was_running(work)
    if running:
        logger.info("the run before ended while at work on %s", "; ".join(running))


def _start(work: Path, plan: Plan, files: InputFiles, vocabulary_path: Path) -> None:
    """Make the folders and write the plan, which comes last."""
    _remove_work(work)
    for name in _WORK_FOLDERS:
        make_folder(work / name)
    for length in plan.options.sequence_length:
        folder = dataset_folder(work.parent, length)
        make_folder(folder)
        if any(folder.iterdir()):
            raise DataError(
                f"{folder}: not empty, and not of a preparation that can be resumed; remove "
                "it, or choose another --output-dir."
            )
    with atomic_file(work / VOCABULARY_NAME) as file:
        file.write(vocabulary_path.read_bytes())
    write_plan(plan, files, work)


def discard(work: Path, folders: Sequence[Path]) -> None:
    """Remove the work folder, and dataset folders that are not complete."""
    for folder in (*(f for f in folders if not (f / MANIFEST_NAME).exists()), work):
        shutil.rmtree(folder, ignore_errors=True)
