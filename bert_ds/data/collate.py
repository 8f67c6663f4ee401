"""Turns ragged rows into the tensors of a micro batch, padded or packed.

Hard here is packing. All rows of a micro batch lie end to end in one sequence of tokens, and
`cu_seqlens` alone separates them: it holds the start of each row and the end of the last one, and
attention, position embeddings and the pooler go by it. If a packed micro batch is filled up to a
fixed size, the padding is cut into rows as well, none longer than `max_seqlen`, so that attention's
cost is bounded. Such a row has no masked position and NO_PAIR_LABEL, so no loss sees it. What must
not change: masked positions count from the first token of the first row, and every token belongs to
exactly one row.

Legend: B rows, S longest row rounded up to a multiple of 8, T tokens of all rows, P masked
positions of all rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from bert_ds.batch import NO_PAIR_LABEL, Batch, PackedBatch, PretrainingBatch
from bert_ds.config.recipe import BatchLayout
from bert_ds.data.row_copy import starts_of
from data_prep.contract.compiled import compiled
from data_prep.contract.format import Block, IntArray, UnsignedArray

_LENGTH_MULTIPLE = 8  # tensor cores need multiples of 8; on CPUs it costs nothing measurable

_Int64Array = npt.NDArray[np.int64]


def lay_out(block: Block, layout: BatchLayout) -> Batch:
    """Return the rows of a block, at least 1, as one micro batch that is not filled up."""
    return collate(block) if layout == "padded" else pack(block)


def collate(block: Block) -> PretrainingBatch:
    """Pad the rows of a block at the right and flatten the masked positions.

    Args:
        block: B rows, at least 1.

    Returns:
        Tensors on the CPU with the shapes of `PretrainingBatch`.
    """
    starts = starts_of(block.length)
    width = -(-int(block.length.max()) // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
    shape = len(block), width
    input_ids, token_type_ids = np.empty(shape, np.int64), np.empty(shape, np.int64)
    is_real = np.empty(shape, np.bool_)
    _pad(block.tokens, starts, block.segment_a_length, input_ids, token_type_ids, is_real)
    row_starts = np.arange(len(block), dtype=np.int64) * width
    return PretrainingBatch(
        input_ids=torch.from_numpy(input_ids),
        token_type_ids=torch.from_numpy(token_type_ids),
        attention_mask=torch.from_numpy(is_real),
        masked_lm_positions=torch.from_numpy(_flat_positions(block, row_starts)),
        masked_lm_ids=torch.from_numpy(block.masked_lm_ids.astype(np.int64)),
        next_sentence_label=torch.from_numpy(_labels(block)),
    )


def pack(block: Block, num_tokens: int | None = None, longest: int | None = None) -> PackedBatch:
    """Lay the rows of a block end to end.

    Args:
        block: B rows, at least 1 if `longest` is None.
        num_tokens: tokens to fill the micro batch up to, with rows of padding that no loss sees;
            None for no padding.
        longest: the bound on a row's tokens; None for the length of the longest row.

    Returns:
        Tensors on the CPU with the shapes of `PackedBatch`.
    """
    starts = starts_of(block.length)
    longest = int(block.length.max()) if longest is None else longest
    num_tokens = len(block.tokens) if num_tokens is None else num_tokens
    ends_of_fill = np.arange(len(block.tokens), num_tokens, longest, dtype=np.int64)[1:]
    if len(block.tokens) < num_tokens:
        ends_of_fill = np.append(ends_of_fill, num_tokens)
    cu_seqlens = np.concatenate([starts, ends_of_fill])
    input_ids = np.zeros(num_tokens, np.int64)
    token_type_ids = np.zeros(num_tokens, np.int64)
    position_ids = np.empty(num_tokens, np.int64)
    _lay(block.tokens, starts, block.segment_a_length, input_ids, token_type_ids)
    _count(cu_seqlens, position_ids)
    labels = np.append(_labels(block), np.full(len(ends_of_fill), NO_PAIR_LABEL, np.int64))
    return PackedBatch(
        input_ids=torch.from_numpy(input_ids),
        token_type_ids=torch.from_numpy(token_type_ids),
        position_ids=torch.from_numpy(position_ids),
        cu_seqlens=torch.from_numpy(cu_seqlens.astype(np.int32)),
        max_seqlen=longest,
        masked_lm_positions=torch.from_numpy(_flat_positions(block, starts[:-1])),
        masked_lm_ids=torch.from_numpy(block.masked_lm_ids.astype(np.int64)),
        next_sentence_label=torch.from_numpy(labels),
    )


def _flat_positions(block: Block, row_starts: IntArray) -> _Int64Array:
    """Return the masked positions, counted over all rows, int64 [P]."""
    positions = np.repeat(row_starts, block.num_predictions) + block.masked_lm_positions
    return positions.astype(np.int64, copy=False)


def _labels(block: Block) -> _Int64Array:
    """Return the pair labels, int64 [B]."""
    if block.pair_label is None:
        return np.full(len(block), NO_PAIR_LABEL, np.int64)
    return block.pair_label.astype(np.int64)


@compiled
def _pad(
    tokens: UnsignedArray,
    starts: IntArray,
    segment_a_length: UnsignedArray,
    input_ids: _Int64Array,
    token_type_ids: _Int64Array,
    is_real: npt.NDArray[np.bool_],
) -> None:
    """Fill the last three arrays, all [B, S]."""
    for row in range(len(segment_a_length)):
        start, length = starts[row], starts[row + 1] - starts[row]
        of_a = segment_a_length[row]
        input_ids[row, :length] = tokens[start : start + length]
        input_ids[row, length:] = 0
        token_type_ids[row, :of_a] = 0
        token_type_ids[row, of_a:length] = 1
        token_type_ids[row, length:] = 0
        is_real[row, :length] = True
        is_real[row, length:] = False


@compiled
def _lay(
    tokens: UnsignedArray,
    starts: IntArray,
    segment_a_length: UnsignedArray,
    input_ids: _Int64Array,
    token_type_ids: _Int64Array,
) -> None:
    """Fill the first T places of the last two arrays, which hold zeros."""
    input_ids[: len(tokens)] = tokens
    for row in range(len(segment_a_length)):
        begin_of_b = starts[row] + np.int64(segment_a_length[row])
        token_type_ids[begin_of_b : starts[row + 1]] = 1


@compiled
def _count(starts: IntArray, position_ids: _Int64Array) -> None:
    """Fill `position_ids`, [T], with the place of each token in its row."""
    for row in range(len(starts) - 1):
        for place in range(starts[row], starts[row + 1]):
            position_ids[place] = place - starts[row]
