"""The manifest of a dataset folder: what the shards hold, how they came about, their checksums.

`manifest.json` is written last, so that a folder with a manifest is complete. It is readable,
deterministic, and names nothing of the machine but the inputs as they were given. Its size depends
on the shards, not on the number of input files. Reading it costs no look at the shards:
`data_prep.inspect.verify` compares the two.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_prep.contract.errors import DataError
from data_prep.contract.format import FORMAT_VERSION

MANIFEST_NAME = "manifest.json"
VOCABULARY_NAME = "vocab.txt"
SPLITS = ("train", "valid")


@dataclass(frozen=True)
class BlockEntry:
    """Where a block lies: one `pread(offset, size)` in the shard gives its `.npz`."""

    offset: int
    """Bytes from the start of the shard to the payload of the tar member."""
    size: int
    """Bytes of the payload."""
    count: int
    """Rows of the block."""
    checksum: int
    """Checksum over those of its fields, as `format.block_checksum` computes it."""


@dataclass(frozen=True)
class ShardEntry:
    """One tar file of a split."""

    file: str
    """Name in the dataset folder."""
    bytes: int
    """Size of the file."""
    sha256: str
    """Checksum of the whole file, hexadecimal."""
    count: int
    """Rows of all its blocks."""
    blocks: tuple[BlockEntry, ...]
    """The blocks, in their order in the file."""


@dataclass(frozen=True)
class VocabularyEntry:
    """The vocabulary the rows are made with; the file itself is `vocab.txt` in the folder."""

    sha256: str
    """Checksum of the vocabulary file, hexadecimal."""
    size: int
    """Number of pieces."""
    lowercase: bool
    """Whether text is lowercased before it is cut into pieces."""
    strip_accents: bool
    """Whether accents are removed before text is cut into pieces."""


@dataclass(frozen=True)
class InputEntry:
    """One of the paths that were given, or what is left of many."""

    path: str
    """The path as it was given; for the rest of many, how many paths these are."""
    files: int
    """Files in it."""
    bytes: int
    """Size of all of them."""
    sha256: str
    """Checksum over the sizes and contents of its files in order, hexadecimal."""
    weight: float | None
    """How often its documents are used, as a multiple of the duplicate factor; None where the
    paths of one entry have different weights."""


@dataclass(frozen=True)
class InputSummary:
    """All input files together: of bounded size, however many there are."""

    files: int
    """Number of files."""
    bytes: int
    """Bytes of all of them."""
    sha256: str
    """Checksum over the sizes, contents and weights of all files in order, hexadecimal; no name
    is in it, nor under which of the given paths a file was found."""
    given: tuple[InputEntry, ...]
    """The paths that were given, in order."""

    def identity(self) -> list[Any]:
        """Return what of it decides the bytes of a dataset, as plain JSON values."""
        return [self.files, self.bytes, self.sha256]

    def to_json(self) -> dict[str, Any]:
        """Return the summary as plain JSON values."""
        return {**vars(self), "given": [vars(entry).copy() for entry in self.given]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> InputSummary:
        """Read what `to_json` wrote; raise KeyError or TypeError where a field is wrong."""
        given = tuple(InputEntry(**entry) for entry in content["given"])
        return cls(**{**content, "given": given})


@dataclass(frozen=True)
class Totals:
    """Sums over all rows of a split."""

    rows: int = 0
    """Number of rows."""
    tokens: int = 0
    """Tokens of all rows."""
    predictions: int = 0
    """Masked positions of all rows."""
    label_1: int = 0
    """Rows whose second segment is random (or swapped)."""
    length_histogram: tuple[int, ...] = ()
    """Element i is the number of rows with i tokens; sequence_length + 1 elements."""
    commonest_prediction_id: int = 0
    """The piece that stands most often in `masked_lm_ids`; the smallest id among equals."""
    commonest_prediction_count: int = 0
    """How often it stands there: the accuracy of the best constant guess."""
    unknown: int = 0
    """[UNK] in the text, masked positions included."""
    repeated_rows: int = 0
    """Rows whose pieces a row before them has as well; an estimate where there are many."""


@dataclass(frozen=True)
class SplitSource:
    """What the rows of a split were made of, as far as they do not show it themselves."""

    documents: int = 0
    """Documents that the rows are made of."""
    documents_without_partner: int = 0
    """Documents that had no other text to take a random second segment from."""
    divided_rows: int = 0
    """Rows whose two segments are the halves of one sentence."""


@dataclass(frozen=True)
class TextFacts:
    """What the text of both splits is like."""

    sentences: int = 0
    """Sentences of all documents."""
    pieces: int = 0
    """Pieces of all documents."""
    single_sentence_documents: int = 0
    """Documents of one sentence."""
    single_sentence_pieces: int = 0
    """Their pieces."""
    unknown_pieces: int = 0
    """[UNK] among the pieces."""
    unknown_characters: int = 0
    """Characters that no piece begins with, as often as the text has them."""
    scripts: tuple[tuple[str, int], ...] = ()
    """The commonest scripts, and how many characters of the text belong to each."""


@dataclass(frozen=True)
class Manifest:
    """Everything about a dataset folder; see the fields of its parts."""

    tool_version: str
    """Version of the package that made the folder."""
    sequence_length: int
    """The most tokens a row may have."""
    max_predictions_per_seq: int
    """The most masked positions a row may have."""
    pair_label_name: str | None
    """Name of the label in the blocks; None where rows are single segments."""
    vocabulary: VocabularyEntry
    """The vocabulary and how text is normalised."""
    parameters: Mapping[str, Any]
    """Every parameter of the preparation, the seed included."""
    inputs: InputSummary
    """The input files, summed up."""
    train_shards: tuple[ShardEntry, ...]
    """Shards for training."""
    valid_shards: tuple[ShardEntry, ...]
    """Shards that are held out."""
    train_totals: Totals
    """Sums over the rows for training."""
    valid_totals: Totals
    """Sums over the rows that are held out."""
    documents: int = 0
    """Documents that hold text, of both splits."""
    repeated_documents: int = 0
    """Documents whose text another one has as well; an estimate where there are many."""
    unknown_characters: tuple[tuple[str, int], ...] = ()
    """The commonest characters that no piece begins with, and how often the text has each."""
    train_source: SplitSource = SplitSource()
    """What the rows for training are made of."""
    valid_source: SplitSource = SplitSource()
    """What the rows that are held out are made of."""
    text: TextFacts = TextFacts()
    """What was found out about the text."""
    format_version: int = FORMAT_VERSION
    """Version of the format of shards and manifest."""
    fingerprint: str = ""
    """The sha256 over all that determines the bytes of the shards, and over their checksums."""

    def shards(self, split: str) -> tuple[ShardEntry, ...]:
        """Return the shards of "train" or "valid", in order."""
        return {"train": self.train_shards, "valid": self.valid_shards}[split]

    def totals(self, split: str) -> Totals:
        """Return the totals of "train" or "valid"."""
        return {"train": self.train_totals, "valid": self.valid_totals}[split]

    def source(self, split: str) -> SplitSource:
        """Return what the rows of "train" or "valid" were made of."""
        return {"train": self.train_source, "valid": self.valid_source}[split]

    def with_fingerprint(self) -> Manifest:
        """Return the same manifest with `fingerprint` computed from its other fields."""
        return replace(self, fingerprint=_fingerprint(self))


def _fingerprint(manifest: Manifest) -> str:
    """Return the sha256 over all that determines the bytes; names of inputs are no part of it."""
    content = to_json(manifest)
    content.pop("fingerprint")
    content.pop("tool_version")
    content.pop("unknown_characters")
    content.pop("text")  # names of scripts are Python's
    content["inputs"] = manifest.inputs.identity()
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def dataset_folder(data: Path, sequence_length: int) -> Path:
    """Return the folder, below the data folder, that holds the dataset of a sequence length."""
    return data / f"seq{sequence_length}"


def to_json(manifest: Manifest) -> dict[str, Any]:
    """Return `manifest` as plain JSON values, in reading order."""
    return {
        "format_version": manifest.format_version,
        "tool_version": manifest.tool_version,
        "fingerprint": manifest.fingerprint,
        "sequence_length": manifest.sequence_length,
        "max_predictions_per_seq": manifest.max_predictions_per_seq,
        "pair_label_name": manifest.pair_label_name,
        "vocabulary": vars(manifest.vocabulary).copy(),
        "parameters": dict(manifest.parameters),
        "inputs": manifest.inputs.to_json(),
        "documents": manifest.documents,
        "repeated_documents": manifest.repeated_documents,
        "unknown_characters": [list(entry) for entry in manifest.unknown_characters],
        "text": {**vars(manifest.text), "scripts": [list(s) for s in manifest.text.scripts]},
        "splits": {
            split: {
                "source": vars(manifest.source(split)).copy(),
                "totals": {
                    **vars(manifest.totals(split)),
                    "length_histogram": list(manifest.totals(split).length_histogram),
                },
                "shards": [shard_to_json(shard) for shard in manifest.shards(split)],
            }
            for split in SPLITS
        },
    }


def shard_to_json(shard: ShardEntry) -> dict[str, Any]:
    """Return `shard` as plain JSON values; a block is [offset, size, count, checksum]."""
    return {
        **vars(shard),
        "blocks": [[b.offset, b.size, b.count, b.checksum] for b in shard.blocks],
    }


def shard_from_json(content: Mapping[str, Any]) -> ShardEntry:
    """Return the shard that `shard_to_json` wrote."""
    blocks = tuple(BlockEntry(*block) for block in content["blocks"])
    return ShardEntry(**{**content, "blocks": blocks})


def from_json(content: Mapping[str, Any]) -> Manifest:
    """Read what `to_json` wrote; raise KeyError, TypeError or ValueError where a field is wrong."""
    splits = content["splits"]
    shards = {
        split: tuple(shard_from_json(shard) for shard in splits[split]["shards"])
        for split in SPLITS
    }
    totals = {split: _totals_from_json(splits[split]["totals"]) for split in SPLITS}
    return Manifest(
        tool_version=content["tool_version"],
        sequence_length=content["sequence_length"],
        max_predictions_per_seq=content["max_predictions_per_seq"],
        pair_label_name=content["pair_label_name"],
        vocabulary=VocabularyEntry(**content["vocabulary"]),
        parameters=dict(content["parameters"]),
        inputs=InputSummary.from_json(content["inputs"]),
        train_shards=shards["train"],
        valid_shards=shards["valid"],
        train_totals=totals["train"],
        valid_totals=totals["valid"],
        documents=content["documents"],
        repeated_documents=content["repeated_documents"],
        unknown_characters=tuple((name, count) for name, count in content["unknown_characters"]),
        train_source=SplitSource(**splits["train"]["source"]),
        valid_source=SplitSource(**splits["valid"]["source"]),
        text=_text_from_json(content["text"]),
        format_version=content["format_version"],
        fingerprint=content["fingerprint"],
    )


def _totals_from_json(content: Mapping[str, Any]) -> Totals:
    """Return totals out of plain JSON values."""
    return Totals(**{**content, "length_histogram": tuple(content["length_histogram"])})


def _text_from_json(content: Mapping[str, Any]) -> TextFacts:
    """Return the facts about the text out of plain JSON values."""
    scripts = tuple((name, count) for name, count in content["scripts"])
    return TextFacts(**{**content, "scripts": scripts})


def dumps(content: Any, indent: str = "") -> str:
    """Return readable JSON: a line per key, but lists of plain values on one line."""
    if isinstance(content, Mapping) and content:
        inner = indent + "  "
        lines = [f"{inner}{json.dumps(k)}: {dumps(v, inner)}" for k, v in content.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(content, list | tuple) and any(isinstance(v, Mapping | list) for v in content):
        inner = indent + "  "
        return "[\n" + ",\n".join(inner + dumps(v, inner) for v in content) + f"\n{indent}]"
    return json.dumps(content)


def load_manifest(folder: Path | str) -> Manifest:
    """Read `manifest.json` of a dataset folder; the shards are not looked at.

    Args:
        folder: a dataset folder such as `D/seq128`.

    Returns:
        The manifest.

    Raises:
        DataError: no such folder, no manifest in it (the preparation did not end), or a manifest
            that is not JSON, of another format version, or without a field.
    """
    path = Path(folder) / MANIFEST_NAME
    if not Path(folder).is_dir():
        raise DataError(
            f"{folder}: no such folder; a dataset folder is made by `bert-prep shards`."
        )
    if not path.is_file():
        raise DataError(f"{folder}: no {MANIFEST_NAME} in it{_manifest_hint(Path(folder))}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content["format_version"]
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise DataError(
            f"{path}: not a manifest ({type(err).__name__}: {err}); prepare the data again."
        ) from err
    if version != FORMAT_VERSION:
        raise DataError(
            f"{path}: format_version is {version!r}, this version reads {FORMAT_VERSION}; "
            "prepare the data again, or use the version of bert_ds that made it."
        )
    try:
        return from_json(content)
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        raise DataError(
            f"{path}: a field is missing or wrong ({type(err).__name__}: {err}); "
            "prepare the data again."
        ) from err


def _manifest_hint(folder: Path) -> str:
    """Return how to fix a folder without a manifest."""
    inside = sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST_NAME}"))
    if inside:
        return f"; the dataset folders in it are: {', '.join(inside)}."
    return "; either it is not a dataset folder, or `bert-prep shards` did not end: run it again."
