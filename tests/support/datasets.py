"""Small datasets for tests: random rows written with the real writer, or real text prepared."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from data_prep.contract.format import Block, select_rows
from data_prep.contract.manifest import (
    MANIFEST_NAME,
    VOCABULARY_NAME,
    InputSummary,
    Manifest,
    ShardEntry,
    Totals,
    VocabularyEntry,
    dumps,
    to_json,
)
from data_prep.stages.shard_writer import write_shards
from data_prep.stages.totals import TotalsSummer

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CLS, SEP, MASK = 2, 3, 4
PAIR_LABEL = "next_sentence_label"


def vocabulary_text(size: int) -> str:
    """A vocabulary file of `size` pieces, the special ones first."""
    return "".join(f"{piece}\n" for piece in [*SPECIAL_PIECES, *(f"w{i}" for i in range(5, size))])


def random_block(
    num_rows: int,
    sequence_length: int,
    vocab_size: int,
    seed: int,
    *,
    min_length: int = 8,
    is_masked: bool = True,
    is_paired: bool = True,
) -> Block:
    """Rows of random lengths with a learnable habit: each piece is the former one plus 1.

    Args:
        num_rows: rows.
        sequence_length: tokens of the longest row.
        vocab_size: pieces, the special ones included.
        seed: of the random numbers.
        min_length: tokens of the shortest row.
        is_masked: whether rows are masked; otherwise that is left to the reader.
        is_paired: whether rows are pairs with a label; otherwise they are single segments.
    """
    rng = np.random.default_rng(seed)
    length = rng.integers(min_length, sequence_length + 1, num_rows)
    segment_a = rng.integers(3, length - 3) if is_paired else length
    num_predictions = np.maximum(1, np.round(0.15 * length)).astype(np.int64)
    tokens, positions, ids = [], [], []
    for row in range(num_rows):
        row_tokens = 5 + (rng.integers(vocab_size) + np.arange(length[row])) % (vocab_size - 5)
        row_tokens[[0, segment_a[row] - 1, -1]] = CLS, SEP, SEP
        inner = np.setdiff1d(np.arange(1, length[row] - 1), [segment_a[row] - 1])
        chosen = np.sort(rng.permutation(inner)[: num_predictions[row] * is_masked])
        num_predictions[row] = len(chosen)
        positions.append(chosen)
        ids.append(row_tokens[chosen].copy())
        row_tokens[chosen] = MASK
        tokens.append(row_tokens)
    return Block(
        tokens=np.concatenate(tokens).astype(np.uint16),
        length=length.astype(np.uint16),
        segment_a_length=segment_a.astype(np.uint16),
        num_predictions=num_predictions.astype(np.uint8),
        masked_lm_positions=np.concatenate(positions).astype(
            np.uint8 if sequence_length <= 256 else np.uint16
        ),
        masked_lm_ids=np.concatenate(ids).astype(np.uint16),
        pair_label=rng.integers(0, 2, num_rows).astype(np.uint8) if is_paired else None,
        pair_label_name=PAIR_LABEL if is_paired else None,
    )


def make_dataset(
    folder: Path,
    *,
    sequence_length: int = 32,
    vocab_size: int = 64,
    num_train: int = 200,
    num_valid: int = 24,
    rows_per_block: int = 16,
    seed: int = 0,
    is_masked: bool = True,
    is_paired: bool = True,
    min_length: int = 8,
) -> Manifest:
    """Write a dataset folder of random rows with the real shard writer and manifest.

    With `min_length` equal to `sequence_length` all shards of full blocks have the same size.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = vocabulary_text(vocab_size)
    (folder / VOCABULARY_NAME).write_text(vocabulary)
    shards: dict[str, tuple[ShardEntry, ...]] = {}
    totals: dict[str, Totals] = {}
    for split, count, split_seed in (("train", num_train, seed), ("valid", num_valid, seed + 1)):
        summer = TotalsSummer(sequence_length, vocab_size, SPECIAL_PIECES.index("[UNK]"))
        if count == 0:
            shards[split], totals[split] = (), summer.totals()
            continue
        block = random_block(
            count,
            sequence_length,
            vocab_size,
            split_seed,
            min_length=min_length,
            is_masked=is_masked,
            is_paired=is_paired,
        )
        blocks = [
            select_rows(block, np.arange(start, min(start + rows_per_block, count)))
            for start in range(0, count, rows_per_block)
        ]
        written = summer.count_rows(iter(blocks))
        shards[split] = tuple(write_shards(folder, f"{split}-00000", written, 4))
        totals[split] = summer.totals()
    manifest = Manifest(
        tool_version="test",
        sequence_length=sequence_length,
        max_predictions_per_seq=max(1, round(0.15 * sequence_length)),
        pair_label_name=PAIR_LABEL if is_paired else None,
        vocabulary=VocabularyEntry(
            sha256=hashlib.sha256(vocabulary.encode()).hexdigest(),
            size=vocab_size,
            lowercase=True,
            strip_accents=True,
        ),
        parameters={"seed": seed, "masking": "token" if is_masked else "none"},
        inputs=InputSummary(0, 0, "0" * 64, ()),
        train_shards=shards["train"],
        valid_shards=shards["valid"],
        train_totals=totals["train"],
        valid_totals=totals["valid"],
    ).with_fingerprint()
    (folder / MANIFEST_NAME).write_text(dumps(to_json(manifest)))
    return manifest
