"""Reduce: the documents of a group become pairs, masked rows, blocks and shards.

A task is one group at one sequence length; it is done when its result file and the shards named
there exist. Every random number is keyed on seed, document, duplicate and sequence length, the
order of the rows on the group.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from data_prep.files import atomic_file, write_json
from data_prep.format import (
    Block,
    IntArray,
    concatenate_blocks,
    count_dtype,
    position_dtype,
    token_dtype,
)
from data_prep.groups import Group, load_group
from data_prep.manifest import VOCABULARY_NAME, ShardEntry, shard_from_json, shard_to_json
from data_prep.map_stage import spill_path
from data_prep.masking import FloatArray, MaskingRules, mask_rows
from data_prep.pairs import Pair, PairDocument, PairMaker, PairRules
from data_prep.plan import Plan, load_plan
from data_prep.randomness import keyed_generator, keyed_hash
from data_prep.rows import assemble
from data_prep.shard_writer import write_shards
from data_prep.spill import Columns, joined, read_section
from data_prep.wordpiece import Vocabulary, load_vocabulary

PAIR_LABELS = {"next_sentence": "next_sentence_label", "sentence_order": "sentence_order_label"}
_BATCH_ROWS = 2048


class ReduceTask(NamedTuple):
    """One group at one sequence length."""

    split: str
    number: int
    length_index: int
    """Index in `ShardOptions.sequence_length`."""


class ReduceResult(NamedTuple):
    """What a reduce task wrote, and sums over its rows."""

    shards: list[ShardEntry]
    documents: int
    distinct_documents: int
    label_1: int
    length_histogram: list[int]


class _RowBatch(NamedTuple):
    """Pairs and the random numbers for their masks."""

    pairs: list[Pair]
    draws: FloatArray


def dataset_folder(work: Path, sequence_length: int) -> Path:
    """The dataset folder of a sequence length, next to the work folder."""
    return work.parent / f"seq{sequence_length}"


def result_path(work: Path, task: ReduceTask) -> Path:
    """The result of a reduce task; it is written last."""
    return work / "reduce" / f"{task.length_index}-{task.split}-{task.number:05d}.json"


def _counts_path(work: Path, task: ReduceTask) -> Path:
    """How often each piece is to be predicted in the rows of a task."""
    return result_path(work, task).with_suffix(".counts")


def load_result(work: Path, task: ReduceTask) -> ReduceResult:
    """The result of a reduce task that is done."""
    content = json.loads(result_path(work, task).read_text(encoding="utf-8"))
    shards = [shard_from_json(shard) for shard in content.pop("shards")]
    return ReduceResult(shards, **content)


def load_prediction_counts(work: Path, task: ReduceTask) -> npt.NDArray[np.int64]:
    """How often each piece is to be predicted in the rows of a task that is done."""
    return np.fromfile(_counts_path(work, task), "<i8")


def is_done(work: Path, task: ReduceTask) -> bool:
    """Whether a reduce task needs no more work."""
    if not result_path(work, task).is_file():
        return False
    length = load_plan(work).options.sequence_length[task.length_index]
    paths = [
        (dataset_folder(work, length) / shard.file, shard.bytes)
        for shard in load_result(work, task).shards
    ]
    return all(path.is_file() and path.stat().st_size == size for path, size in paths)


@lru_cache(maxsize=1)
def vocabulary_of(work: Path) -> Vocabulary:
    """The vocabulary of this process."""
    return load_vocabulary(work / VOCABULARY_NAME)


def run_reduce_task(work: Path, task: ReduceTask) -> None:
    """Does one reduce task: shards, and a result in the work folder.

    Raises:
        OutputError: a shard cannot be written.
    """
    plan = load_plan(work)
    options = plan.options
    columns = ordered_documents(_read_group(work, plan, task), options.seed)
    length = options.sequence_length[task.length_index]
    blocks = list(_masked_blocks(columns, plan, task.length_index, vocabulary_of(work)))
    shards: list[ShardEntry] = []
    counts, histogram = np.zeros(plan.vocabulary.size, np.int64), np.zeros(length + 1, np.int64)
    label_1 = 0
    if blocks:
        rows = concatenate_blocks(blocks)
        shards = _write_rows(dataset_folder(work, length), task, rows, plan)
        counts = np.bincount(rows.masked_lm_ids, minlength=plan.vocabulary.size)
        histogram = np.bincount(rows.length, minlength=length + 1)
        label_1 = int(rows.pair_label.sum(dtype=np.int64))
    distinct = len(np.unique(columns.documents["content"])) if columns else 0
    documents = len(columns.documents) if columns else 0
    result = ReduceResult(shards, documents, distinct, label_1, histogram.tolist())
    _write_result(work, task, result, counts)


def _write_rows(folder: Path, task: ReduceTask, rows: Block, plan: Plan) -> list[ShardEntry]:
    """Writes the rows of a task in random order."""
    options = plan.options
    length = options.sequence_length[task.length_index]
    generator = keyed_generator(options.seed, "rows", task.split, task.number, length)
    order = np.argsort(generator.random(len(rows)), kind="stable")
    stem = f"{task.split}-{task.number:05d}"
    return write_shards(folder, stem, rows, order, options.rows_per_block, options.blocks_per_shard)


def _write_result(
    work: Path, task: ReduceTask, result: ReduceResult, counts: npt.NDArray[np.int64]
) -> None:
    """Writes counts, then the result."""
    with atomic_file(_counts_path(work, task)) as file:
        file.write(counts.astype("<i8").tobytes())
    shards = [shard_to_json(shard) for shard in result.shards]
    write_json(result_path(work, task), {**result._asdict(), "shards": shards})


def _read_group(work: Path, plan: Plan, task: ReduceTask) -> Columns | None:
    """The documents of a group out of all spills; None where there is none."""
    group: Group = load_group(work, task.split, task.number)
    dtype = token_dtype(plan.vocabulary.size)
    parts = []
    for source in group.sources:
        columns = read_section(spill_path(work, source.task), source.section, dtype)
        content = columns.documents["content"]
        if source.only is not None:
            columns = columns.kept(np.isin(content, np.array(source.only, np.uint64)))
        elif source.without:
            columns = columns.kept(~np.isin(content, np.array(source.without, np.uint64)))
        if len(columns.documents):
            parts.append(columns)
    return joined(parts) if parts else None


def ordered_documents(columns: Columns | None, seed: int) -> Columns | None:
    """The documents by keyed hash: an order that no map task decides."""
    if columns is None:
        return None
    keys = [
        (keyed_hash(seed, "order", int(document["input"]), int(document["offset"])), index)
        for index, document in enumerate(columns.documents)
    ]
    order = [index for _, index in sorted(keys)]
    sentence_bounds = np.concatenate([[0], np.cumsum(columns.documents["sentences"], dtype=int)])
    token_bounds = np.concatenate([[0], np.cumsum(columns.sentence_lengths, dtype=int)])
    sentences = [slice(sentence_bounds[i], sentence_bounds[i + 1]) for i in order]
    tokens = [slice(token_bounds[part.start], token_bounds[part.stop]) for part in sentences]
    return Columns(
        columns.documents[order],
        np.concatenate([columns.sentence_lengths[part] for part in sentences]),
        np.concatenate([columns.ids[part] for part in tokens]),
    )


def _masked_blocks(
    columns: Columns | None, plan: Plan, length_index: int, vocabulary: Vocabulary
) -> Iterator[Block]:
    """The masked rows of all documents and duplicates, some thousand at a time."""
    if columns is None:
        return
    options = plan.options
    length = options.sequence_length[length_index]
    special = vocabulary.special_ids
    rules = MaskingRules(
        vocabulary.pieces,
        special,
        length,
        options.max_predictions_per_seq[length_index],
        options.masking,
    )
    pair_rules = PairRules(options.pairs, length - 3, options.short_sequence_probability)
    for batch in _row_batches(columns, plan, length, pair_rules, rules.draws_per_row):
        rows = assemble(columns.ids, batch.pairs, special["[CLS]"], special["[SEP]"])
        masked = mask_rows(rows.tokens, rows.length, rows.segment_a_length, batch.draws, rules)
        yield Block(
            tokens=_unsigned(masked.tokens, columns.ids.dtype),
            length=_unsigned(rows.length, np.dtype(np.uint16)),
            segment_a_length=_unsigned(rows.segment_a_length, np.dtype(np.uint16)),
            num_predictions=_unsigned(
                masked.num_predictions, count_dtype(rules.max_predictions_per_seq)
            ),
            masked_lm_positions=_unsigned(masked.masked_lm_positions, position_dtype(length)),
            masked_lm_ids=_unsigned(masked.masked_lm_ids, columns.ids.dtype),
            pair_label=_unsigned(rows.label, np.dtype(np.uint8)),
            pair_label_name=PAIR_LABELS[options.pairs],
        )


def _unsigned(array: IntArray, dtype: np.dtype[Any]) -> npt.NDArray[np.unsignedinteger[Any]]:
    """`array` as the contract stores it."""
    return array.astype(dtype)


def _row_batches(
    columns: Columns, plan: Plan, length: int, pair_rules: PairRules, draws_per_row: int
) -> Iterator[_RowBatch]:
    """Pairs of every document and duplicate with their random numbers."""
    maker = PairMaker(_pair_documents(columns), pair_rules)
    pairs: list[Pair] = []
    draws: list[FloatArray] = []
    for index, document in enumerate(columns.documents):
        key = (plan.options.seed, "document", int(document["input"]), int(document["offset"]))
        for duplicate in range(plan.options.duplicate_factor):
            generator = keyed_generator(*key, duplicate, length)
            made = maker.pairs(index, generator)
            pairs += made
            draws.append(generator.random((len(made), draws_per_row), np.float32))
            if len(pairs) >= _BATCH_ROWS:
                yield _RowBatch(pairs, np.concatenate(draws))
                pairs, draws = [], []
    if pairs:
        yield _RowBatch(pairs, np.concatenate(draws))


def _pair_documents(columns: Columns) -> list[PairDocument]:
    """The documents as spans of the flat ids."""
    bounds = np.concatenate([[0], np.cumsum(columns.sentence_lengths, dtype=np.int64)]).tolist()
    first = 0
    documents = []
    for document in columns.documents:
        last = first + int(document["sentences"])
        documents.append(PairDocument(bounds[first : last + 1], int(document["content"])))
        first = last
    return documents
