"""`bert-prep show`: rows of a dataset folder as text that people can read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_prep.contract.errors import DataError, UsageError
from data_prep.contract.format import Block
from data_prep.contract.manifest import VOCABULARY_NAME, load_manifest
from data_prep.contract.wordpiece import Vocabulary, join_pieces, load_vocabulary
from data_prep.inspect.dataset import read_split

_LABELS: dict[str | None, tuple[str, str]] = {
    "next_sentence_label": ("B follows A", "B is from another document"),
    "sentence_order_label": ("A and B in order", "A and B swapped"),
}
_COLOURS = {"mask": "\x1b[1;32m", "kept": "\x1b[1;34m", "random": "\x1b[1;31m", "end": "\x1b[0m"}
LEGEND = (
    "[MASK:x] masked, x stood there; {kept:x} to be predicted and left as it is; "
    "{random:y<-x} x replaced by a random y."
)


class _Row(NamedTuple):
    number: int
    """Number in the split."""
    where: str
    """Shard and block that hold it."""
    tokens: list[int]
    """Piece ids, some of them masked."""
    segment_a_length: int
    """Tokens up to the first [SEP]."""
    originals: dict[int, int]
    """Piece that stood at each masked position."""
    label: int | None
    """The label; None without pairs."""


def show_rows(folder: Path, split: str, start: int, count: int, is_coloured: bool) -> Iterator[str]:
    """Yield some rows of a split, each as some lines.

    Args:
        folder: the dataset folder.
        split: "train" or "valid".
        start: number of the first row.
        count: rows to show.
        is_coloured: mark masks with colours too.

    Raises:
        UsageError: there is no such row.
        DataError: a shard is damaged.
    """
    manifest = load_manifest(folder)
    if not 0 <= start < manifest.totals(split).rows:
        raise UsageError(
            f"--start {start}: {folder} has {manifest.totals(split).rows} rows in {split}, "
            "the first is 0."
        )
    vocabulary = load_vocabulary(folder / VOCABULARY_NAME)
    yield LEGEND
    for row in _rows(folder, split, start, count):
        yield _text(row, vocabulary, manifest.pair_label_name, is_coloured)


def _rows(folder: Path, split: str, start: int, count: int) -> Iterator[_Row]:
    """Yield rows start, start + 1, ... of a split."""
    first = 0
    for where, block in read_split(folder, load_manifest(folder), split):
        for index in range(max(start - first, 0), min(start + count - first, len(block))):
            yield _row(block, index, first + index, where)
        first += len(block)
        if first >= start + count:
            return


def _row(block: Block, index: int, number: int, where: str) -> _Row:
    """Return one row of a block."""
    token_end = np.cumsum(block.length, dtype=np.int64)
    mask_end = np.cumsum(block.num_predictions, dtype=np.int64)
    tokens = slice(token_end[index] - block.length[index], token_end[index])
    masked = slice(mask_end[index] - block.num_predictions[index], mask_end[index])
    positions = block.masked_lm_positions[masked].tolist()
    originals = dict(zip(positions, block.masked_lm_ids[masked].tolist(), strict=True))
    segment_a = int(block.segment_a_length[index])
    label = None if block.pair_label is None else int(block.pair_label[index])
    return _Row(
        number, f"{where} row {index}", block.tokens[tokens].tolist(), segment_a, originals, label
    )


def _text(row: _Row, vocabulary: Vocabulary, label_name: str | None, is_coloured: bool) -> str:
    """Return a row as a heading and a line for each segment."""
    if max([*row.tokens, *row.originals.values()]) >= len(vocabulary):
        raise DataError(f"{row.where}: a piece is not in the vocabulary; the data is damaged.")
    pieces = [_piece(row, position, vocabulary, is_coloured) for position in range(len(row.tokens))]
    segment_a, segment_b = pieces[: row.segment_a_length], pieces[row.segment_a_length :]
    heading = (
        f"\nrow {row.number} ({row.where}): {len(row.tokens)} tokens, "
        f"{len(row.originals)} predictions"
    )
    if row.label is None:
        return f"{heading}\nA: {join_pieces(segment_a)}"
    return (
        f"{heading}, {label_name} {row.label} ({_LABELS[label_name][row.label]})\n"
        f"A: {join_pieces(segment_a)}\nB: {join_pieces(segment_b)}"
    )


def _piece(row: _Row, position: int, vocabulary: Vocabulary, is_coloured: bool) -> str:
    """Return the piece at a position, marked where it is to be predicted."""
    piece = vocabulary.pieces[row.tokens[position]]
    if position not in row.originals:
        return piece
    original = vocabulary.pieces[row.originals[position]]
    if piece == "[MASK]":
        kind, text = "mask", f"[MASK:{original}]"
    elif piece == original:
        kind, text = "kept", f"{{kept:{original}}}"
    else:
        kind, text = "random", f"{{random:{piece}<-{original}}}"
    return f"{_COLOURS[kind]}{text}{_COLOURS['end']}" if is_coloured else text
