"""From ragged rows to the padded tensors of a micro batch.

Legend: B rows, S longest row rounded up to a multiple of 8, P masked positions of all rows.
"""

from __future__ import annotations

import numpy as np
import torch

from bert_ds.batch import PretrainingBatch
from data_prep.format import Block

_LENGTH_MULTIPLE = 8  # tensor cores want multiples of 8; on CPU it costs nothing measurable


def collate(block: Block) -> PretrainingBatch:
    """Pad the rows of a block at the right and flatten the masked positions.

    Args:
        block: B rows.

    Returns:
        Tensors on the CPU, shapes as documented in `PretrainingBatch`.
    """
    length = block.length.astype(np.int64)
    num_rows = len(length)
    width = -(-int(length.max()) // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
    columns = np.arange(width, dtype=np.int64)
    is_real = columns < length[:, None]
    input_ids = np.zeros((num_rows, width), dtype=np.int64)
    input_ids[is_real] = block.tokens
    is_second = (columns >= block.segment_a_length.astype(np.int64)[:, None]) & is_real
    row_starts = np.arange(num_rows, dtype=np.int64) * width
    positions = np.repeat(row_starts, block.num_predictions) + block.masked_lm_positions
    return PretrainingBatch(
        input_ids=torch.from_numpy(input_ids),
        token_type_ids=torch.from_numpy(is_second.astype(np.int64)),
        attention_mask=torch.from_numpy(is_real),
        masked_lm_positions=torch.from_numpy(positions.astype(np.int64)),
        masked_lm_ids=torch.from_numpy(block.masked_lm_ids.astype(np.int64)),
        next_sentence_label=torch.from_numpy(block.pair_label.astype(np.int64)),
    )
