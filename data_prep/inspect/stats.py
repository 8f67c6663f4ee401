"""`bert-prep stats`: distributions of a dataset folder as text, and what in them needs a look."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.contract.format import Block, IntArray
from data_prep.contract.manifest import SPLITS, VOCABULARY_NAME, Manifest, Totals, load_manifest
from data_prep.contract.quality import judge_dataset, padding_share, unknown_share
from data_prep.contract.wordpiece import Vocabulary, load_vocabulary
from data_prep.inspect.dataset import read_split
from data_prep.inspect.recipes import PhaseRows, read_phases

logger = logging.getLogger(__name__)

_BAR_WIDTH = 40
_BINS = 16


@dataclass
class Counts:
    """Sums that the manifest does not hold."""

    masked: int = 0
    """Predictions whose token is [MASK]."""
    kept: int = 0
    """Predictions whose token is the original piece."""


def describe_folder(folder: Path, recipe: Path | None = None) -> Iterator[str]:
    """Return lines about both splits of a dataset folder.

    Args:
        folder: the dataset folder.
        recipe: a recipe folder, whose epochs are reported.

    Raises:
        DataError: the folder is no dataset, or a shard is damaged.
        UsageError: the recipe cannot be read.
    """
    manifest = load_manifest(folder)
    vocabulary = load_vocabulary(folder / VOCABULARY_NAME)
    phases = read_phases(recipe)
    yield (
        f"{folder}: sequence_length {manifest.sequence_length}, vocabulary of "
        f"{manifest.vocabulary.size} pieces, fingerprint {manifest.fingerprint[:16]}"
    )
    yield from _document_lines(manifest)
    yield from epoch_lines(manifest, phases)
    for split in SPLITS:
        totals = manifest.totals(split)
        yield f"\n{split}: {totals.rows} rows in {len(manifest.shards(split))} shards"
        if totals.rows:
            counts = count_split(folder, manifest, split, vocabulary)
            yield from _lines(manifest, totals, counts, vocabulary)
    yield "\njudgement"
    findings = judge_dataset(manifest)
    for finding in findings:
        yield from (f"  {line}" for line in finding.lines())
    if not findings:
        yield "  every share is within its limits"


def summary_lines(folder: Path, manifest: Manifest, phases: list[PhaseRows]) -> Iterator[str]:
    """Yield what a preparation has made, in a few lines.

    Args:
        folder: the dataset folder.
        manifest: its manifest.
        phases: the phases of a recipe, whose epochs are reported.
    """
    train, valid = manifest.train_totals, manifest.valid_totals
    size = sum(shard.bytes for split in SPLITS for shard in manifest.shards(split))
    shards = sum(len(manifest.shards(split)) for split in SPLITS)
    yield (
        f"{folder}: {train.rows} train rows, {valid.rows} valid rows, "
        f"{train.tokens + valid.tokens} tokens in {shards} shards of {size / 1e6:.1f} MB; "
        f"{padding_share(manifest, train):.1%} padding if rows were padded to full length"
    )
    yield from _document_lines(manifest)
    yield from epoch_lines(manifest, phases)


def log_result(folder: Path, manifest: Manifest, phases: list[PhaseRows]) -> None:
    """Log what a preparation has made, and warn of every share beyond its limits.

    Args:
        folder: the dataset folder.
        manifest: its manifest.
        phases: the phases of a recipe, whose epochs are reported.
    """
    for line in summary_lines(folder, manifest, phases):
        logger.info("%s", line)
    for finding in judge_dataset(manifest):
        for line in finding.lines():
            logger.warning("%s", line)


def _document_lines(manifest: Manifest) -> Iterator[str]:
    """Yield what the text itself is like."""
    share = manifest.repeated_documents / max(manifest.documents, 1)
    yield f"  documents           {manifest.documents}, {share:.2%} with the text of another one"
    if manifest.unknown_characters:
        named = ", ".join(
            f"{name!r} U+{ord(name):04X} {count}" for name, count in manifest.unknown_characters
        )
        yield f"  unknown characters  {named}"


def epoch_lines(manifest: Manifest, phases: list[PhaseRows]) -> Iterator[str]:
    """Yield how often the phases of a recipe at this sequence length go through the train split."""
    for phase in phases:
        if phase.sequence_length == manifest.sequence_length and manifest.train_totals.rows:
            epochs = phase.rows / manifest.train_totals.rows
            uses = epochs * float(manifest.parameters["duplicate_factor"])
            yield (
                f"  {phase.name:<18}  {phase.rows} rows: {epochs:.3g} epochs, each text "
                f"{uses:.3g} times"
            )


def count_split(folder: Path, manifest: Manifest, split: str, vocabulary: Vocabulary) -> Counts:
    """Count the masked and the kept predictions of a split; reads all its rows.

    Args:
        folder: the dataset folder.
        manifest: its manifest.
        split: "train" or "valid".
        vocabulary: the vocabulary of the dataset.
    """
    special = vocabulary.special_ids
    counts = Counts()
    for _, block in read_split(folder, manifest, split):
        at = predicted_places(block)
        shown, original = block.tokens[at], block.masked_lm_ids
        counts.masked += int(np.count_nonzero(shown == special["[MASK]"]))
        counts.kept += int(np.count_nonzero(shown == original))
    return counts


def predicted_places(block: Block) -> IntArray:
    """Return where in `tokens` the masked positions of all rows lie, int64 [P]."""
    length = block.length.astype(np.int64)
    start = np.cumsum(length) - length
    return np.asarray(np.repeat(start, block.num_predictions) + block.masked_lm_positions)


def _lines(
    manifest: Manifest, totals: Totals, counts: Counts, vocabulary: Vocabulary
) -> Iterator[str]:
    """Yield the figures of one split."""
    rows, tokens = totals.rows, totals.tokens
    padding = padding_share(manifest, totals)
    yield f"  tokens              {tokens} ({tokens / rows:.1f} a row)"
    yield f"  padding             {padding:.1%} if every row were padded to full length"
    if manifest.pair_label_name:
        yield f"  {manifest.pair_label_name} 1  {totals.label_1 / rows:.1%}"
    if totals.predictions:
        yield from _prediction_lines(totals, counts, vocabulary)
    else:
        yield "  predictions         none: the reader masks"
    yield f"  unknown pieces      {unknown_share(manifest, totals):.3%} of the text"
    yield f"  repeated rows       {totals.repeated_rows / rows:.2%} have the text of another row"
    yield "  tokens a row"
    yield from _histogram(totals.length_histogram)


def _prediction_lines(totals: Totals, counts: Counts, vocabulary: Vocabulary) -> Iterator[str]:
    """Yield the figures about masked positions."""
    predictions = totals.predictions
    changed = predictions - counts.masked - counts.kept
    commonest = vocabulary.pieces[totals.commonest_prediction_id]
    share = totals.commonest_prediction_count / predictions
    yield f"  predictions         {predictions} ({predictions / totals.tokens:.1%} of the tokens)"
    yield (
        f"    [MASK] {counts.masked / predictions:.1%}, kept {counts.kept / predictions:.1%}, "
        f"random {changed / predictions:.1%} (a random piece equal to the original counts as kept)"
    )
    yield f"    commonest           {commonest!r}, {share:.1%}: the accuracy of always saying so"


def _histogram(counts: tuple[int, ...]) -> Iterator[str]:
    """Yield a bar for each of some ranges of length."""
    longest = len(counts) - 1
    width = -(-longest // _BINS)
    bins = [
        (low, min(low + width - 1, longest), sum(counts[low : low + width]))
        for low in range(1, longest + 1, width)
    ]
    most = max(count for _, _, count in bins)
    for low, high, count in bins:
        yield f"    {low:>5}-{high:<5} {count:>10} {'#' * round(_BAR_WIDTH * count / most)}"
