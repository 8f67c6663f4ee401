"""`bert-prep stats`: distributions of a dataset folder as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.dataset import read_split
from data_prep.manifest import SPLITS, VOCABULARY_NAME, Manifest, Totals, load_manifest
from data_prep.wordpiece import Vocabulary, load_vocabulary

_BAR_WIDTH = 40
_BINS = 16


@dataclass
class _Counts:
    """Sums that the manifest does not hold."""

    masked: int = 0
    """Predictions whose token is [MASK]."""
    kept: int = 0
    """Predictions whose token is the original piece."""
    unknown: int = 0
    """[UNK] in the original text, masked positions included."""


def describe_folder(folder: Path) -> Iterator[str]:
    """Lines about both splits of a dataset folder.

    Raises:
        DataError: the folder is no dataset, or a shard is damaged.
    """
    manifest = load_manifest(folder)
    vocabulary = load_vocabulary(folder / VOCABULARY_NAME)
    yield (
        f"{folder}: sequence_length {manifest.sequence_length}, vocabulary of "
        f"{manifest.vocabulary.size} pieces, fingerprint {manifest.fingerprint[:16]}"
    )
    for split in SPLITS:
        totals = manifest.totals(split)
        yield f"\n{split}: {totals.rows} rows in {len(manifest.shards(split))} shards"
        if totals.rows:
            counts = _count(folder, manifest, split, vocabulary)
            yield from _lines(manifest, totals, counts, vocabulary)


def _count(folder: Path, manifest: Manifest, split: str, vocabulary: Vocabulary) -> _Counts:
    """Reads all rows of a split."""
    special = vocabulary.special_ids
    counts = _Counts()
    for _, block in read_split(folder, manifest, split):
        length = block.length.astype(np.int64)
        start = np.cumsum(length) - length
        at = np.repeat(start, block.num_predictions) + block.masked_lm_positions
        shown, original = block.tokens[at], block.masked_lm_ids
        counts.masked += int(np.count_nonzero(shown == special["[MASK]"]))
        counts.kept += int(np.count_nonzero(shown == original))
        counts.unknown += int(np.count_nonzero(block.tokens == special["[UNK]"]))
        counts.unknown += int(np.count_nonzero(original == special["[UNK]"]))
        counts.unknown -= int(np.count_nonzero(shown == special["[UNK]"]))
    return counts


def _lines(
    manifest: Manifest, totals: Totals, counts: _Counts, vocabulary: Vocabulary
) -> Iterator[str]:
    """The figures of one split."""
    rows, tokens, predictions = totals.rows, totals.tokens, totals.predictions
    text_tokens = tokens - 3 * rows
    changed = predictions - counts.masked - counts.kept
    padding = 1 - tokens / (rows * manifest.sequence_length)
    commonest = vocabulary.pieces[totals.commonest_prediction_id]
    yield f"  tokens              {tokens} ({tokens / rows:.1f} a row)"
    yield f"  padding             {padding:.1%} if every row were padded to full length"
    yield f"  {manifest.pair_label_name} 1  {totals.label_1 / rows:.1%}"
    yield f"  predictions         {predictions} ({predictions / tokens:.1%} of the tokens)"
    yield (
        f"    [MASK] {counts.masked / predictions:.1%}, kept {counts.kept / predictions:.1%}, "
        f"random {changed / predictions:.1%} (a random piece equal to the original counts as kept)"
    )
    share = totals.commonest_prediction_count / predictions
    yield f"    commonest           {commonest!r}, {share:.1%}: the accuracy of always saying so"
    yield f"  unknown pieces      {counts.unknown / text_tokens:.3%} of the text"
    yield "  tokens a row"
    yield from _histogram(totals.length_histogram)


def _histogram(counts: tuple[int, ...]) -> Iterator[str]:
    """A bar for each of some ranges of length."""
    longest = len(counts) - 1
    width = -(-longest // _BINS)
    bins = [
        (low, min(low + width - 1, longest), sum(counts[low : low + width]))
        for low in range(1, longest + 1, width)
    ]
    most = max(count for _, _, count in bins)
    for low, high, count in bins:
        yield f"    {low:>5}-{high:<5} {count:>10} {'#' * round(_BAR_WIDTH * count / most)}"
