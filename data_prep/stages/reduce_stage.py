"""Reduce: the documents of a group become pairs, masked rows, blocks and shards.

A task is one group at one sequence length; it is done when its result file exists and the shards
have the checksums named there. Nothing waits for the disk before the manifest is written. Every
random number is keyed on seed, document, duplicate and sequence length, the order of the rows on
the group. Rows stay spans of the documents until their block is written.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from data_prep.contract.errors import DataError
from data_prep.contract.format import Block, IntArray, count_dtype, position_dtype, token_dtype
from data_prep.contract.manifest import (
    ShardEntry,
    SplitSource,
    dataset_folder,
    shard_from_json,
    shard_to_json,
)
from data_prep.contract.masking import MaskedRows, MaskingRules, mask_rows
from data_prep.contract.randomness import keyed_hash, keyed_words
from data_prep.contract.storage import crc32_file, sha256_file
from data_prep.contract.wordpiece import Vocabulary
from data_prep.running.files import atomic_file, damaged_work, read_work_json, write_work_json
from data_prep.stages.groups import load_group
from data_prep.stages.job import Job
from data_prep.stages.map_stage import spill_path
from data_prep.stages.pairs import Documents, Pairs, make_pairs
from data_prep.stages.plan import Plan, ShardOptions
from data_prep.stages.rows import assemble
from data_prep.stages.shard_writer import write_shards
from data_prep.stages.spill import Columns, concat, read_sections
from data_prep.stages.totals import RowSums, TotalsSummer

logger = logging.getLogger(__name__)

PAIR_LABELS: dict[str, str | None] = {
    "next_sentence": "next_sentence_label",
    "sentence_order": "sentence_order_label",
    "none": None,
}
_ORDER, _DOCUMENT, _COPIES, _ROWS = 2, 3, 4, 5  # purposes of random numbers


class ReduceTask(NamedTuple):
    """One group at one sequence length."""

    split: str
    """The split of the group."""
    number: int
    """Number of the group in its split."""
    length_index: int
    """Index in `ShardOptions.sequence_length`."""


class ReduceResult(NamedTuple):
    """What a reduce task wrote, and sums over its rows."""

    shards: list[ShardEntry]
    """Entries of the shards."""
    source: SplitSource
    """What the rows are made of."""
    label_1: int
    """Rows with label 1."""
    unknown: int
    """[UNK] in the text of the rows."""
    length_histogram: list[int]
    """Rows by their number of tokens."""
    zeros: int
    """The `zeros` of the sketch that has kept the hashes of the rows."""
    counts_crc32: int
    """CRC-32 of the file that `_counts_path` names."""


def result_path(work: Path, task: ReduceTask) -> Path:
    """Return the path of the result of a reduce task; that file is written last."""
    return work / "reduce" / f"{task.length_index}-{task.split}-{task.number:05d}.json"


def _counts_path(work: Path, task: ReduceTask) -> Path:
    """Return the path for how often each piece is predicted, and then the hashes of the rows."""
    return result_path(work, task).with_suffix(".counts")


def load_result(work: Path, task: ReduceTask) -> ReduceResult:
    """Return the result of a reduce task that is done."""
    content = read_work_json(result_path(work, task))
    shards = [shard_from_json(shard) for shard in content.pop("shards")]
    return ReduceResult(shards, SplitSource(**content.pop("source")), **content)


def add_sums(work: Path, task: ReduceTask, summer: TotalsSummer) -> None:
    """Add the sums over the rows of a task that is done.

    Args:
        work: the work folder.
        task: the task.
        summer: gets the sums.
    """
    path, result = _counts_path(work, task), load_result(work, task)
    try:
        with path.open("rb") as file:
            counts = np.fromfile(file, "<i8", len(summer.prediction_counts))
            hashes = np.fromfile(file, "<u8")
    except OSError as err:
        raise DataError(damaged_work(path, err)) from err
    histogram = np.array(result.length_histogram, np.int64)
    sums = RowSums(histogram, counts, result.label_1, result.unknown, hashes, result.zeros)
    summer.merge(sums)


def is_begun(work: Path, task: ReduceTask) -> bool:
    """Return whether a reduce task has left a result, be it a damaged one."""
    return result_path(work, task).is_file()


def _is_done(job: Job, task: ReduceTask) -> bool:
    """Return whether a reduce task has left a result and shards that are whole."""
    work = job.work
    if not is_begun(work, task):
        return False
    length = job.plan.options.sequence_length[task.length_index]
    try:
        result = load_result(work, task)
        shards = [
            (dataset_folder(work.parent, length) / shard.file, shard.sha256)
            for shard in result.shards
        ]
        return crc32_file(_counts_path(work, task)) == result.counts_crc32 and all(
            sha256_file(path) == sha256 for path, sha256 in shards
        )
    except (DataError, OSError) as err:
        logger.debug("%s", err)
        return False


def run_reduce_task(job: Job, task: ReduceTask) -> None:
    """Do one reduce task, unless it is done: shards, and a result in the work folder.

    Raises:
        OutputError: a shard cannot be written.
    """
    if _is_done(job, task):
        return
    work, plan, vocabulary = job.work, job.plan, job.vocabulary
    length = plan.options.sequence_length[task.length_index]
    columns = _read_group(work, plan, task)
    summer = TotalsSummer(length, len(vocabulary), vocabulary.id_of("[UNK]"))
    shards: list[ShardEntry] = []
    source = SplitSource()
    if columns is not None:
        pairs = _ordered_pairs(columns, plan, task)
        source = _source(columns, pairs)
        blocks = summer.count_rows(_blocks(columns, pairs, plan, task, vocabulary))
        folder, stem = dataset_folder(work.parent, length), f"{task.split}-{task.number:05d}"
        shards = write_shards(folder, stem, blocks, plan.options.blocks_per_shard)
    with atomic_file(_counts_path(work, task), is_durable=False) as file:
        file.write(summer.prediction_counts.astype("<i8").tobytes())
        file.write(summer.rows.kept().astype("<u8").tobytes())
    result = ReduceResult(
        shards,
        source,
        summer.label_1,
        summer.unknown,
        summer.histogram.tolist(),
        summer.rows.zeros,
        crc32_file(_counts_path(work, task)),
    )
    content = {
        **result._asdict(),
        "shards": [shard_to_json(shard) for shard in shards],
        "source": asdict(source),
    }
    write_work_json(result_path(work, task), content, is_durable=False)


def _source(columns: Columns, pairs: Pairs) -> SplitSource:
    """Return what the rows of a group are made of."""
    content = columns.documents["content"]
    has_partners = bool(np.any(content != content[0]))
    return SplitSource(
        documents=len(content),
        documents_without_partner=0 if has_partners else len(content),
        divided_rows=int(np.count_nonzero(pairs.is_divided)),
    )


def _is_among(
    content: npt.NDArray[np.uint64], few: npt.NDArray[np.uint64]
) -> npt.NDArray[np.bool_]:
    """Return which hashes are among a few. By sorting: numpy 2.0's table overflows on uint64."""
    return np.isin(content, few, kind="sort")


def _read_group(work: Path, plan: Plan, task: ReduceTask) -> Columns | None:
    """Return the documents of a group out of all spills, ordered; None where there is none."""
    group = load_group(work, task.split, task.number)
    arriving, leaving = np.array(group.arriving, np.uint64), np.array(group.leaving, np.uint64)
    dtype = token_dtype(plan.vocabulary.size)
    parts = []
    for number, sections in group.spills():
        read = read_sections(spill_path(work, number), sections, dtype)
        for section, columns in zip(sections, read, strict=True):
            content = columns.documents["content"]
            if section.is_valid != (task.split == "valid"):
                columns = columns.select(np.flatnonzero(_is_among(content, arriving)))
            elif len(leaving):
                columns = columns.select(np.flatnonzero(~_is_among(content, leaving)))
            if len(columns.documents):
                parts.append(columns)
    return ordered_documents(concat(parts), plan.options.seed) if parts else None


def ordered_documents(columns: Columns, seed: int) -> Columns:
    """Return the documents by keyed hash: an order that no map task decides."""
    documents = columns.documents
    return columns.select(
        np.lexsort((documents["offset"], documents["input"], _numbers(columns, seed, _ORDER)))
    )


def _numbers(columns: Columns, seed: int, purpose: int) -> npt.NDArray[np.uint64]:
    """Return a random number for every document, uint64 [D]."""
    key = np.uint64(keyed_hash(seed, "documents"))
    documents = columns.documents
    inputs, offsets = documents["input"].copy(), documents["offset"].copy()
    return keyed_words(key, purpose, inputs, offsets)


def _documents(columns: Columns, plan: Plan) -> Documents:
    """Return the documents as rows are made of them."""
    weights = plan.weights_of(columns.documents["input"])
    share = _numbers(columns, plan.options.seed, _COPIES) / 2.0**64
    copies = np.floor(plan.options.duplicate_factor * weights + share).astype(np.int64)
    return Documents(
        columns.documents["sentences"].astype(np.int64),
        columns.sentence_lengths.astype(np.int64),
        columns.documents["content"].copy(),
        _numbers(columns, plan.options.seed, _DOCUMENT),
        copies,
    )


def _ordered_pairs(columns: Columns, plan: Plan, task: ReduceTask) -> Pairs:
    """Return the pairs of all documents and duplicates in random order."""
    pairs = make_pairs(_documents(columns, plan), plan.options.pair_rules(task.length_index))
    return pairs.select(_row_order(len(pairs), plan.options, task))


def _blocks(
    columns: Columns, pairs: Pairs, plan: Plan, task: ReduceTask, vocabulary: Vocabulary
) -> Iterator[Block]:
    """Yield the rows of `pairs`, masked, block by block."""
    options = plan.options
    special = vocabulary.special_ids
    most = options.max_predictions_per_seq[task.length_index]
    rules = (
        MaskingRules(vocabulary.pieces, special, most, options.masking)
        if options.masking != "none"
        else None
    )
    for start in range(0, len(pairs), options.rows_per_block):
        rows = np.arange(start, min(start + options.rows_per_block, len(pairs)))
        yield _block(columns, pairs.select(rows), options, task.length_index, special, rules)


def _row_order(count: int, options: ShardOptions, task: ReduceTask) -> IntArray:
    """Return the order in which the rows of a task are written, int64 [n]."""
    length = options.sequence_length[task.length_index]
    key = np.uint64(keyed_hash(options.seed, "rows", task.split, task.number, length))
    rows = np.arange(count, dtype=np.uint64)
    return np.argsort(keyed_words(key, _ROWS, np.zeros(count, np.uint32), rows), kind="stable")


def _block(
    columns: Columns,
    pairs: Pairs,
    options: ShardOptions,
    length_index: int,
    special: dict[str, int],
    rules: MaskingRules | None,
) -> Block:
    """Return rows as the contract stores them; without `rules` nothing is masked."""
    most = options.max_predictions_per_seq[length_index]
    rows = assemble(columns.ids, pairs, special["[CLS]"], special["[SEP]"])
    if rules is None:
        none = np.zeros(0, np.int64)
        masked = MaskedRows(rows.tokens, np.zeros(len(pairs), np.int64), none, rows.tokens[:0])
    else:
        masked = mask_rows(rows.tokens, rows.length, rows.segment_a_length, pairs.row_keys, rules)
    label_name = PAIR_LABELS[options.pairs]
    return Block(
        tokens=masked.tokens,
        length=rows.length.astype(np.uint16),
        segment_a_length=rows.segment_a_length.astype(np.uint16),
        num_predictions=masked.num_predictions.astype(count_dtype(most)),
        masked_lm_positions=masked.masked_lm_positions.astype(
            position_dtype(options.sequence_length[length_index])
        ),
        masked_lm_ids=masked.masked_lm_ids,
        pair_label=pairs.label if label_name else None,
        pair_label_name=label_name,
    )
