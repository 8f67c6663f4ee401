"""Finalise: the results of all tasks become the manifest, which makes a dataset folder complete."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from data_prep.contract.errors import DataError, InputError
from data_prep.contract.manifest import (
    MANIFEST_NAME,
    SPLITS,
    VOCABULARY_NAME,
    Manifest,
    ShardEntry,
    SplitSource,
    TextFacts,
    Totals,
    dataset_folder,
    to_json,
)
from data_prep.contract.quality import UNKNOWN, judge_dataset
from data_prep.contract.storage import TEMPORARY_SUFFIX
from data_prep.contract.version import tool_version
from data_prep.pieces.scripts import named_scripts
from data_prep.running.files import atomic_file, make_durable, write_json
from data_prep.stages.job import Job
from data_prep.stages.map_stage import load_contents
from data_prep.stages.map_stage import load_result as load_map_result
from data_prep.stages.plan import Plan
from data_prep.stages.reduce_stage import (
    PAIR_LABELS,
    ReduceTask,
    add_sums,
    load_result,
)
from data_prep.stages.sketch import HashSketch
from data_prep.stages.totals import TotalsSummer

_NAMED_CHARACTERS = 10


def finalise(job: Job, tasks: Sequence[ReduceTask]) -> list[Manifest]:
    """Write the vocabulary and the manifest of every dataset folder; remove the work folder.

    Raises:
        InputError: the text gives no row to train on.
        OutputError: a file cannot be written.
    """
    work, plan = job.work, job.plan
    manifests = []
    found = _facts(work, plan)
    for index, length in enumerate(plan.options.sequence_length):
        of_length = [task for task in tasks if task.length_index == index]
        manifest = replace(_manifest(job, index, of_length), **found).with_fingerprint()
        if not manifest.train_totals.rows:
            raise InputError(_why_no_rows(manifest))
        folder = dataset_folder(work.parent, length)
        _remove_leftovers(folder, manifest)
        with atomic_file(folder / VOCABULARY_NAME) as file:
            file.write((work / VOCABULARY_NAME).read_bytes())
        make_durable(folder, (s.file for split in SPLITS for s in manifest.shards(split)))
        write_json(folder / MANIFEST_NAME, to_json(manifest))
        manifests.append(manifest)
    shutil.rmtree(work)
    return manifests


def _why_no_rows(manifest: Manifest) -> str:
    """Return the message where a text gives no row to train on."""
    unknown = [line for f in judge_dataset(manifest) if f.subject == UNKNOWN for line in f.lines()]
    return "\n".join(
        [
            "the inputs give no row to train on: the documents are single pieces without another "
            "one to pair them with, or --weights leaves none in; give more text.",
            *unknown,
        ]
    )


def _manifest(job: Job, index: int, tasks: Sequence[ReduceTask]) -> Manifest:
    """Return the manifest of one sequence length."""
    plan = job.plan
    options = plan.options
    shards: dict[str, tuple[ShardEntry, ...]] = {}
    totals: dict[str, Totals] = {}
    sources: dict[str, SplitSource] = {}
    for split in SPLITS:
        of_split = [task for task in tasks if task.split == split]
        results = [load_result(job.work, task) for task in of_split]
        shards[split] = tuple(shard for result in results for shard in result.shards)
        totals[split] = _totals(job, of_split, options.sequence_length[index])
        sources[split] = _sum_of([result.source for result in results])
    return Manifest(
        tool_version=tool_version(),
        sequence_length=options.sequence_length[index],
        max_predictions_per_seq=options.max_predictions_per_seq[index],
        pair_label_name=PAIR_LABELS[options.pairs],
        vocabulary=plan.vocabulary,
        parameters=options.for_length(index),
        inputs=plan.inputs,
        train_shards=shards["train"],
        valid_shards=shards["valid"],
        train_totals=totals["train"],
        valid_totals=totals["valid"],
        train_source=sources["train"],
        valid_source=sources["valid"],
    )


def _sum_of(sources: Sequence[SplitSource]) -> SplitSource:
    """Return what the rows of several groups are made of."""
    names = [field.name for field in fields(SplitSource)]
    return SplitSource(**{name: sum(getattr(s, name) for s in sources) for name in names})


def _facts(work: Path, plan: Plan) -> dict[str, Any]:
    """Return what the map stage has found out about the text, as fields of a manifest."""
    unknown: Counter[str] = Counter()
    blocks: Counter[int] = Counter()
    sums: Counter[str] = Counter()
    documents, contents = 0, HashSketch()
    for task in range(len(plan.tasks)):
        result = load_map_result(work, task)
        unknown.update(result.unknown_characters)
        blocks.update(dict(result.character_blocks))
        sums.update(result.sums._asdict())
        hashes = load_contents(work, task)
        documents += len(hashes)
        contents.add(hashes)
    commonest = sorted(unknown.items(), key=lambda entry: (-entry[1], entry[0]))
    return {
        "documents": documents,
        "repeated_documents": contents.repeated(),
        "unknown_characters": tuple(commonest[:_NAMED_CHARACTERS]),
        "text": TextFacts(
            **sums, unknown_characters=sum(unknown.values()), scripts=named_scripts(blocks)
        ),
    }


def _totals(job: Job, tasks: Sequence[ReduceTask], sequence_length: int) -> Totals:
    """Return the sums over the results of `tasks`."""
    vocabulary = job.vocabulary
    summer = TotalsSummer(sequence_length, len(vocabulary), vocabulary.id_of("[UNK]"))
    for task in tasks:
        add_sums(job.work, task, summer)
    return summer.totals()


def _remove_leftovers(folder: Path, manifest: Manifest) -> None:
    """Remove temporary files of killed workers; raise DataError for shards of others."""
    for path in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        path.unlink(missing_ok=True)
    ours = {shard.file for split in SPLITS for shard in manifest.shards(split)}
    foreign = sorted(path.name for path in folder.glob("*.tar") if path.name not in ours)
    if foreign:
        raise DataError(
            f"{folder}: {', '.join(foreign[:3])} not made by this preparation; remove the files "
            "and run the command again."
        )
