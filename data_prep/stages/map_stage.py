"""Map: reads documents, cuts them into sentences and pieces once, and spills them by hash.

A task is done when its result file exists and the spill has the checksum named there; neither waits
for the disk. The result also names a few content hashes, by which `data_prep.stages.groups` makes
sure that no split stays empty.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from data_prep.contract.errors import DataError
from data_prep.contract.format import token_dtype
from data_prep.contract.randomness import keyed_hash, keyed_words
from data_prep.contract.storage import crc32_file
from data_prep.pieces.encode import Encoded
from data_prep.pieces.scripts import count_letters, new_block_counts
from data_prep.running.files import atomic_file, read_work_json, write_work_json
from data_prep.stages.job import Job
from data_prep.stages.plan import stored_files
from data_prep.stages.spill import SpillWriter, section_table
from data_prep.text.file_chunks import read_files

logger = logging.getLogger(__name__)

NAMED_HASHES = 4
"""How many content hashes at the border of the splits a result names."""
_BUCKET = 1  # purpose of the random numbers


class TextSums(NamedTuple):
    """Sums over the documents of a task; see `manifest.TextFacts`."""

    sentences: int = 0
    """Number of sentences."""
    pieces: int = 0
    """Number of pieces."""
    single_sentence_documents: int = 0
    """Documents of one sentence."""
    single_sentence_pieces: int = 0
    """Pieces of these."""
    unknown_pieces: int = 0
    """Pieces that are [UNK]."""


class MapResult(NamedTuple):
    """What a map task found, besides its spill."""

    sections: npt.NDArray[Any]
    """Table of the spill's sections, as `spill.section_table` makes it."""
    skipped: int
    """Documents without a single piece."""
    lowest_train: list[int]
    """The smallest content hashes of the train split, different ones."""
    highest_valid: list[int]
    """The largest content hashes of the valid split, different ones."""
    unknown_characters: dict[str, int]
    """How often characters were found that no piece begins with."""
    character_blocks: list[tuple[int, int]]
    """Blocks of 128 characters that the text has letters of, and how many."""
    sums: TextSums
    """Sums over the documents."""
    contents_offset: int
    """Where in the spill the content hashes of all documents lie, to its end."""
    crc32: int
    """CRC-32 of the spill."""


class _Batch(NamedTuple):
    """Documents of some inputs."""

    inputs: npt.NDArray[np.uint32]
    """uint32 [D], the file of each document."""
    offsets: npt.NDArray[np.uint64]
    """uint64 [D], the offset of each in its file."""
    text: bytes
    """The text that holds them."""
    encoded: Encoded
    """The documents as piece ids."""


def spill_path(work: Path, task: int) -> Path:
    """Return the path of the spill of a map task."""
    return work / "map" / f"{task:05d}.spill"


def result_path(work: Path, task: int) -> Path:
    """Return the path of the result of a map task; that file is written last."""
    return work / "map" / f"{task:05d}.json"


def load_result(work: Path, task: int) -> MapResult:
    """Return the result of a map task that is done."""
    content = read_work_json(result_path(work, task))
    sums = TextSums(**content.pop("sums"))
    return MapResult(section_table(content.pop("sections")), sums=sums, **content)


def is_begun(work: Path, task: int) -> bool:
    """Return whether a map task has left a result, be it a damaged one."""
    return result_path(work, task).is_file() and spill_path(work, task).is_file()


def _is_done(work: Path, task: int) -> bool:
    """Return whether a map task has left a result that is whole."""
    if not is_begun(work, task):
        return False
    try:
        return load_result(work, task).crc32 == crc32_file(spill_path(work, task))
    except (DataError, OSError) as err:
        logger.debug("%s", err)
        return False


def run_map_task(job: Job, task: int) -> None:
    """Do one map task, unless it is done: a spill and a result in the work folder.

    Raises:
        InputError: text that cannot be used.
        OutputError: the spill cannot be written.
    """
    work, plan = job.work, job.plan
    if _is_done(work, task):
        return
    encoder = job.encoder
    encoder.take_unknown()
    key = np.uint64(keyed_hash(plan.options.seed, "documents"))
    num_buckets = np.uint64(plan.num_buckets)
    train: set[int] = set()
    valid: set[int] = set()
    skipped, sums, letters = 0, TextSums(), new_block_counts()
    contents: list[npt.NDArray[np.uint64]] = []
    with atomic_file(spill_path(work, task), is_durable=False) as file:
        writer = SpillWriter(file, token_dtype(plan.vocabulary.size))
        for batch in _batches(job, task):
            is_text = batch.encoded.num_sentences > 0
            skipped += int(np.count_nonzero(~is_text))
            encoded = _without_empty(batch.encoded, is_text)
            count_letters(np.frombuffer(batch.text, np.uint8), letters)
            sums = _added(sums, encoded, encoder.unknown_id)
            inputs, offsets = batch.inputs[is_text], batch.offsets[is_text]
            is_valid = is_held_out(encoded.content, plan.options.valid_fraction)
            contents.append(encoded.content)
            _keep_named(train, encoded.content[~is_valid], is_lowest=True)
            _keep_named(valid, encoded.content[is_valid], is_lowest=False)
            bucket = keyed_words(key, _BUCKET, inputs, offsets) % num_buckets
            writer.add(encoded, (inputs, offsets), is_valid, bucket.astype(np.int64))
        writer.flush()
        contents_offset = file.tell()
        for part in contents:
            file.write(part.astype("<u8").tobytes())
    unknown = encoder.take_unknown()
    result = MapResult(
        section_table(writer.sections),
        skipped,
        sorted(train),
        sorted(valid, reverse=True),
        dict(unknown),
        [(int(block), int(letters[block])) for block in np.flatnonzero(letters)],
        sums,
        contents_offset,
        crc32_file(spill_path(work, task)),
    )
    write_work_json(result_path(work, task), _result_to_json(result), is_durable=False)


def load_contents(work: Path, task: int) -> npt.NDArray[np.uint64]:
    """Return the content hashes of all documents of a map task that is done, in no order."""
    with spill_path(work, task).open("rb") as file:
        file.seek(load_result(work, task).contents_offset)
        return np.fromfile(file, "<u8")


def _result_to_json(result: MapResult) -> dict[str, Any]:
    """Return a result as plain JSON values."""
    sections, sums = result.sections.tolist(), result.sums._asdict()
    return {**result._asdict(), "sections": sections, "sums": sums}


def _added(sums: TextSums, encoded: Encoded, unknown_id: int) -> TextSums:
    """Return the sums with more documents, none of them empty."""
    first = np.cumsum(encoded.num_sentences) - encoded.num_sentences
    single = first[encoded.num_sentences == 1]
    more = (
        len(encoded.sentence_lengths),
        len(encoded.ids),
        len(single),
        int(encoded.sentence_lengths[single].sum(dtype=np.int64)),
        int(np.count_nonzero(encoded.ids == unknown_id)),
    )
    return TextSums(*(former + count for former, count in zip(sums, more, strict=True)))


def is_held_out(content: npt.NDArray[np.uint64], valid_fraction: float) -> npt.NDArray[np.bool_]:
    """Return which texts are in the valid split, by their 64-bit hashes; bool [n]."""
    return np.asarray(content < np.uint64(valid_fraction * 2.0**64))


def _keep_named(named: set[int], content: npt.NDArray[np.uint64], is_lowest: bool) -> None:
    """Add to `named` what belongs to the few lowest (or highest) hashes."""
    distinct = np.unique(content)
    named.update(
        distinct[:NAMED_HASHES].tolist() if is_lowest else distinct[-NAMED_HASHES:].tolist()
    )
    ordered = sorted(named, reverse=not is_lowest)
    named.intersection_update(ordered[:NAMED_HASHES])


def _without_empty(encoded: Encoded, is_text: npt.NDArray[np.bool_]) -> Encoded:
    """Return the documents that hold a piece; the others have neither sentences nor ids."""
    return encoded._replace(
        num_sentences=encoded.num_sentences[is_text], content=encoded.content[is_text]
    )


def _batches(job: Job, task: int) -> Iterator[_Batch]:
    """Yield the documents of a task; all parts of one that was cut have the hash of the first."""
    last_content = None
    encoder, segment = job.encoder, job.plan.tasks[task]
    files = stored_files(job.work, job.plan).part(segment.first, segment.last)
    text_format = job.plan.options.text_format
    chunks = read_files(files, text_format, segment.first, segment.start, segment.end)
    for chunk, inputs in chunks:
        if last_content is None:
            encoder.check(chunk)
        encoded = encoder.encode(chunk)
        if chunk.is_continued and last_content is not None:
            encoded.content[0] = last_content
        last_content = encoded.content[-1]
        yield _Batch(inputs, chunk.offsets, chunk.data, encoded)
