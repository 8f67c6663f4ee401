"""Map: reads documents, cuts them into sentences and pieces once, and spills them by hash.

A task is done when its result file exists. The result also names a few content hashes, by which
`data_prep.groups` makes sure that no split stays empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from data_prep.files import write_json
from data_prep.format import token_dtype
from data_prep.manifest import VOCABULARY_NAME
from data_prep.plan import Plan, Segment, load_plan
from data_prep.randomness import keyed_hash
from data_prep.readers import read_documents
from data_prep.sentences import split_sentences
from data_prep.spill import Section, SpillWriter, TokenisedDocument
from data_prep.wordpiece import WordPieceTokenizer, load_vocabulary

NAMED_HASHES = 4
"""How many content hashes at the border of the splits a result names."""
_BATCH_CHARACTERS = 1 << 20


class MapResult(NamedTuple):
    """What a map task found, besides its spill."""

    sections: list[Section]
    skipped: int
    """Documents without a single piece."""
    lowest_train: list[int]
    """The smallest content hashes of the train split, different ones."""
    highest_valid: list[int]
    """The largest content hashes of the valid split, different ones."""


class _Text(NamedTuple):
    input: int
    offset: int
    sentences: list[str]


def spill_path(work: Path, task: int) -> Path:
    """The spill of a map task."""
    return work / "map" / f"{task:05d}.spill"


def result_path(work: Path, task: int) -> Path:
    """The result of a map task; it is written last."""
    return work / "map" / f"{task:05d}.json"


def load_result(work: Path, task: int) -> MapResult:
    """The result of a map task that is done."""
    content = json.loads(result_path(work, task).read_text(encoding="utf-8"))
    sections = [Section(*section) for section in content.pop("sections")]
    return MapResult(sections, **content)


def is_done(work: Path, task: int) -> bool:
    """Whether a map task needs no more work."""
    return result_path(work, task).is_file()


@lru_cache(maxsize=1)
def tokenizer_of(work: Path) -> WordPieceTokenizer:
    """The tokeniser of this process."""
    entry = load_plan(work).vocabulary
    vocabulary = load_vocabulary(work / VOCABULARY_NAME, entry.lowercase, entry.strip_accents)
    return WordPieceTokenizer(vocabulary)


def run_map_task(work: Path, task: int) -> None:
    """Does one map task: a spill and a result in the work folder.

    Raises:
        InputError: text that cannot be used.
        OutputError: the spill cannot be written.
    """
    plan = load_plan(work)
    writer = SpillWriter(token_dtype(plan.vocabulary.size))
    train: set[int] = set()
    valid: set[int] = set()
    skipped = 0
    texts = (text for segment in plan.tasks[task] for text in _read_segment(plan, segment))
    for document in _tokenised(tokenizer_of(work), texts, plan.options.seed):
        if not document.ids:
            skipped += 1
            continue
        split = split_of(document.content, plan.options.valid_fraction)
        (train if split == "train" else valid).add(document.content)
        bucket = keyed_hash(plan.options.seed, "bucket", document.input, document.offset)
        writer.add(document, split, bucket % plan.num_buckets)
    sections = writer.write(spill_path(work, task))
    result = MapResult(
        sections, skipped, sorted(train)[:NAMED_HASHES], sorted(valid)[::-1][:NAMED_HASHES]
    )
    write_json(result_path(work, task), _result_to_json(result))


def _result_to_json(result: MapResult) -> dict[str, Any]:
    """A result as plain JSON values."""
    return {**result._asdict(), "sections": [list(section) for section in result.sections]}


def split_of(content: int, valid_fraction: float) -> str:
    """The split of a text by its 64-bit hash."""
    return "valid" if content < valid_fraction * 2.0**64 else "train"


def _read_segment(plan: Plan, segment: Segment) -> Iterator[_Text]:
    """The documents of a segment, cut into sentences."""
    options = plan.options
    path = plan.inputs[segment.input].path
    for document in read_documents(path, options.text_format, segment.start, segment.end):
        sentences = split_sentences(document.text, options.sentences)
        yield _Text(segment.input, document.offset, sentences)


def _tokenised(
    tokenizer: WordPieceTokenizer, texts: Iterable[_Text], seed: int
) -> Iterator[TokenisedDocument]:
    """The documents as piece ids; many are given to the tokeniser at once."""
    for batch in _batches(texts):
        encoded = iter(tokenizer.encode([line for text in batch for line in text.sentences]))
        for text in batch:
            sentences = [ids for _ in text.sentences if (ids := next(encoded))]
            content = keyed_hash(seed, "content", "\n".join(text.sentences))
            lengths = [len(sentence) for sentence in sentences]
            ids = [piece for sentence in sentences for piece in sentence]
            yield TokenisedDocument(text.input, text.offset, content, lengths, ids)


def _batches(texts: Iterable[_Text]) -> Iterator[list[_Text]]:
    """Documents in batches of about `_BATCH_CHARACTERS`."""
    batch: list[_Text] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += sum(map(len, text.sentences))
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
