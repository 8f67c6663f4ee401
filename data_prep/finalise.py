"""Finalise: the results of all tasks become the manifest, which makes a dataset folder complete."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.errors import DataError, InputError
from data_prep.files import TEMPORARY_SUFFIX, atomic_file, make_durable, write_json
from data_prep.manifest import (
    MANIFEST_NAME,
    SPLITS,
    VOCABULARY_NAME,
    Manifest,
    ShardEntry,
    Totals,
    to_json,
)
from data_prep.map_stage import load_contents
from data_prep.map_stage import load_result as load_map_result
from data_prep.plan import Plan
from data_prep.reduce_stage import (
    PAIR_LABELS,
    ReduceTask,
    dataset_folder,
    load_prediction_counts,
    load_result,
)
from data_prep.totals import make_totals
from data_prep.version import tool_version

logger = logging.getLogger(__name__)

_KEPT_HASHES = 1 << 22
_NAMED_CHARACTERS = 10


def finalise(work: Path, plan: Plan, tasks: Sequence[ReduceTask]) -> list[Manifest]:
    """Writes the vocabulary and the manifest of every dataset folder, and removes the work folder.

    Raises:
        InputError: the text gives no row to train on.
        OutputError: a file cannot be written.
    """
    manifests = []
    found = _facts(work, plan)
    for index, length in enumerate(plan.options.sequence_length):
        of_length = [task for task in tasks if task.length_index == index]
        manifest = replace(_manifest(work, plan, index, of_length), **found).with_fingerprint()
        if not manifest.train_totals.rows:
            raise InputError(
                "the inputs give no row to train on: the documents are single pieces without "
                "another one to pair them with, or --weights leaves none in; give more text."
            )
        folder = dataset_folder(work, length)
        _remove_leftovers(folder, manifest)
        with atomic_file(folder / VOCABULARY_NAME) as file:
            file.write((work / VOCABULARY_NAME).read_bytes())
        make_durable(folder, (s.file for split in SPLITS for s in manifest.shards(split)))
        write_json(folder / MANIFEST_NAME, to_json(manifest))
        manifests.append(manifest)
    shutil.rmtree(work)
    return manifests


def _manifest(work: Path, plan: Plan, index: int, tasks: Sequence[ReduceTask]) -> Manifest:
    """The manifest of one sequence length."""
    options = plan.options
    shards: dict[str, tuple[ShardEntry, ...]] = {}
    totals: dict[str, Totals] = {}
    for split in SPLITS:
        of_split = [task for task in tasks if task.split == split]
        results = [load_result(work, task) for task in of_split]
        shards[split] = tuple(shard for result in results for shard in result.shards)
        totals[split] = _totals(
            work, of_split, options.sequence_length[index], plan.vocabulary.size
        )
        if any(result.documents and result.distinct_documents == 1 for result in results):
            _warn_about_partners(plan, split)
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
    )


def _facts(work: Path, plan: Plan) -> dict[str, Any]:
    """What the map stage found out about the text, as fields of a manifest.

    Repeated texts are counted among those whose hash ends in some zeros, which are all texts until
    there are many.
    """
    unknown: Counter[str] = Counter()
    documents, kept, ones = 0, np.zeros(0, np.uint64), 0
    for task in range(len(plan.tasks)):
        result = load_map_result(work, task)
        unknown.update(result.unknown_characters)
        contents = load_contents(work, task)
        documents += len(contents)
        kept = np.concatenate([kept, contents[contents & np.uint64(ones) == 0]])
        while len(kept) > _KEPT_HASHES:
            ones = 2 * ones + 1
            kept = kept[kept & np.uint64(ones) == 0]
    share = 1 - len(np.unique(kept)) / max(len(kept), 1)
    commonest = sorted(unknown.items(), key=lambda entry: (-entry[1], entry[0]))
    return {
        "documents": documents,
        "repeated_documents": round(share * documents),
        "unknown_characters": tuple(commonest[:_NAMED_CHARACTERS]),
    }


def _warn_about_partners(plan: Plan, split: str) -> None:
    """Says that a split has no random pairs."""
    if plan.options.pairs == "next_sentence":
        logger.warning(
            "%s: only one document (or equal ones): no random partners, all next_sentence_label "
            "are 0. Documents are separated by blank lines; for one a file give "
            "--one-document-per-file.",
            split,
        )


def _totals(
    work: Path, tasks: Sequence[ReduceTask], sequence_length: int, vocabulary_size: int
) -> Totals:
    """Sums over the results of `tasks`."""
    histogram = np.zeros(sequence_length + 1, np.int64)
    counts = np.zeros(vocabulary_size, np.int64)
    label_1 = 0
    for task in tasks:
        result = load_result(work, task)
        histogram += result.length_histogram
        counts += load_prediction_counts(work, task)
        label_1 += result.label_1
    return make_totals(histogram, counts, label_1)


def _remove_leftovers(folder: Path, manifest: Manifest) -> None:
    """Removes temporary files of killed workers; any other file that is not ours is an error."""
    for path in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        path.unlink(missing_ok=True)
    ours = {shard.file for split in SPLITS for shard in manifest.shards(split)}
    foreign = sorted(path.name for path in folder.glob("*.tar") if path.name not in ours)
    if foreign:
        raise DataError(
            f"{folder}: {', '.join(foreign[:3])} not made by this preparation; remove the files "
            "and run the command again."
        )
