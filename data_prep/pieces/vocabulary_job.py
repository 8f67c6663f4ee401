"""`bert-prep vocab`: a vocabulary file and, next to it, the record of how it was made."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.contract.differences import differences
from data_prep.contract.errors import DataError, UsageError
from data_prep.contract.randomness import keyed_hash, keyed_words
from data_prep.contract.storage import sha256_file
from data_prep.contract.version import tool_version
from data_prep.contract.wordpiece import Vocabulary, load_vocabulary
from data_prep.pieces.vocabulary_training import VocabularyOptions, count_words, train_vocabulary
from data_prep.running.files import atomic_file, make_folder, write_json
from data_prep.running.progress import Progress
from data_prep.text.clean import clean_document
from data_prep.text.file_chunks import read_files
from data_prep.text.input_files import InputFiles, summary_of
from data_prep.text.input_hashes import hash_here
from data_prep.text.inputs import TextFormat, find_inputs

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class VocabularyJob:
    """What `make_vocabulary` is to make, and from what."""

    inputs: Sequence[str]
    """Files and folders."""
    text_format: TextFormat
    """How documents lie in the inputs."""
    options: VocabularyOptions
    """What decides the pieces, besides the text."""
    output: Path
    """The vocabulary file; the record has the same name with `.json`."""
    overwrite: bool = False
    """Whether to replace a vocabulary that was made otherwise."""
    sample_bytes: int | None = None
    """About how much of the text to read, documents drawn from all of it; None for all."""


def record_path(vocabulary: Path) -> Path:
    """Return the path of the record of a vocabulary file."""
    return vocabulary.with_suffix(".json")


def make_vocabulary(job: VocabularyJob) -> str:
    """Train a vocabulary, unless it is there already.

    Returns:
        A line about what was done.

    Raises:
        UsageError: a bad size or path, or the output was made otherwise and is not to be replaced.
        InputError: text that cannot be used, or none.
        OutputError: the output cannot be written.
    """
    if job.output.suffix == ".json":
        raise UsageError(f"--output {job.output}: the record takes the name in .json; use .txt.")
    found = find_inputs(job.inputs, [job.output])
    with Progress("inputs", int(found.files.sizes.sum()), "B") as progress:
        files = hash_here(found.files, progress.advance)
    inputs = summary_of(files, job.inputs, found.first).to_json()
    if job.sample_bytes is not None and job.sample_bytes < 1:
        raise UsageError(f"--sample-bytes {job.sample_bytes}: must be at least 1.")
    parameters = {**asdict(job.options), **asdict(job.text_format)}
    parameters["sample_bytes"] = job.sample_bytes
    identity = {"parameters": parameters, "inputs": inputs}
    if job.output.exists() and not job.overwrite and _is_up_to_date(job.output, identity):
        return f"{job.output} is up to date: made from the same inputs and parameters."
    make_folder(job.output.parent)
    texts = _texts(files, job.text_format, job.sample_bytes)
    pieces = train_vocabulary(count_words(texts), job.options)
    content = "".join(f"{piece}\n" for piece in pieces).encode()
    record_path(job.output).unlink(missing_ok=True)  # never a record of another vocabulary
    with atomic_file(job.output) as file:
        file.write(content)
    record = {
        "tool_version": tool_version(),
        "vocab_sha256": hashlib.sha256(content).hexdigest(),
        "num_pieces": len(pieces),
        "parameters": parameters,
        "inputs": inputs,
    }
    write_json(record_path(job.output), record)
    if len(pieces) < job.options.size:
        logger.info("the text gives no more than %d of %d pieces", len(pieces), job.options.size)
    return f"{job.output}: {len(pieces)} pieces."


def _texts(files: InputFiles, text_format: TextFormat, sample_bytes: int | None) -> Iterator[str]:
    """Yield the text, or documents drawn from it, cleaned as it will be before it is tokenised."""
    total = int(files.sizes.sum())
    share = 1.0 if sample_bytes is None else sample_bytes / max(total, 1)
    key = np.uint64(keyed_hash("vocabulary sample"))
    with Progress("words", total, "B") as progress:
        ends = np.cumsum(files.sizes)
        done = 0
        for chunk, inputs in read_files(files, text_format):
            is_drawn = keyed_words(key, 0, inputs, chunk.offsets) < share * 2.0**64
            for index in np.flatnonzero(is_drawn):
                document = chunk.data[int(chunk.starts[index]) : int(chunk.ends[index])]
                yield from clean_document(document.decode())
            first = int(inputs[-1])  # of this file more may come
            before = int(ends[first - 1]) if first else 0
            progress.advance(before - done)
            done = before


def _is_up_to_date(output: Path, identity: Mapping[str, Any]) -> bool:
    """Return True for the same vocabulary; UsageError where it was made otherwise."""
    record = read_record(output)
    if record is None:
        raise UsageError(
            f"--output {output}: exists, with no record of how it was made; give --overwrite to "
            "replace it."
        )
    saved = {"parameters": record.get("parameters", {}), "inputs": record.get("inputs")}
    found = differences(saved, identity)
    if found:
        raise UsageError(
            f"--output {output}: exists and was made otherwise ({'; '.join(found)}); give the same "
            "parameters, another --output, or --overwrite to replace it."
        )
    return True


def read_record(vocabulary: Path) -> dict[str, Any] | None:
    """Return the record of a vocabulary file; None where there is none.

    Raises:
        DataError: the record is of another vocabulary.
    """
    path = record_path(vocabulary)
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        is_ours = record["vocab_sha256"] == sha256_file(vocabulary)
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise DataError(
            f"{path}: stands where the record of {vocabulary} belongs, and is none "
            f"({type(err).__name__}: {err}); rename one of the two."
        ) from err
    if not is_ours:
        raise DataError(
            f"{path}: records another vocabulary than {vocabulary} (vocab_sha256 differs); make "
            "the vocabulary again, or remove the record and say the casing yourself."
        )
    return dict(record)


def vocabulary_with_casing(path: Path, cased: bool, strip_accents: bool | None) -> Vocabulary:
    """Return the vocabulary of `path`, normalised as its record names it, else as asked.

    Args:
        path: the vocabulary file.
        cased: --cased was given.
        strip_accents: as given, or None.

    Raises:
        UsageError: what was given contradicts the record.
        DataError: no usable vocabulary.
    """
    vocabulary = load_vocabulary(path, not cased, strip_accents)
    record = read_record(path)
    if record is None:
        return vocabulary
    recorded = record["parameters"]
    if cased and recorded["lowercase"]:
        raise UsageError(
            f"--cased: {record_path(path)} says that {path} is uncased; leave --cased out."
        )
    if strip_accents not in (None, recorded["strip_accents"]):
        raise UsageError(
            f"--strip-accents: {record_path(path)} says strip_accents "
            f"{recorded['strip_accents']}; leave the option out."
        )
    return load_vocabulary(path, recorded["lowercase"], recorded["strip_accents"])
