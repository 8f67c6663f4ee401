"""Padding of ragged rows, by hand and against plain loops."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_ds.data.collate import collate, pack
from data_prep.contract.format import Block
from tests.support.datasets import random_block


def test_a_hand_worked_micro_batch() -> None:
    block = Block(
        tokens=np.array([2, 7, 4, 3, 8, 3, 2, 4, 3, 9, 3], np.uint16),
        length=np.array([6, 5], np.uint16),
        segment_a_length=np.array([4, 3], np.uint16),
        num_predictions=np.array([1, 1], np.uint8),
        masked_lm_positions=np.array([2, 1], np.uint8),
        masked_lm_ids=np.array([11, 12], np.uint16),
        pair_label=np.array([0, 1], np.uint8),
        pair_label_name="next_sentence_label",
    )
    batch = collate(block)
    assert batch.input_ids.tolist() == [[2, 7, 4, 3, 8, 3, 0, 0], [2, 4, 3, 9, 3, 0, 0, 0]]
    assert batch.token_type_ids.tolist() == [[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 0, 0, 0]]
    assert batch.attention_mask.sum(dim=1).tolist() == [6, 5]
    assert batch.attention_mask[1].tolist() == [True] * 5 + [False] * 3
    assert batch.masked_lm_positions.tolist() == [2, 8 + 1]
    assert batch.masked_lm_ids.tolist() == [11, 12]
    assert batch.next_sentence_label.tolist() == [0, 1]
    assert batch.attention_mask.dtype == torch.bool
    assert {t.dtype for t in batch if t.dtype != torch.bool} == {torch.int64}


@settings(deadline=None)
@given(num_rows=st.integers(1, 9), sequence_length=st.integers(9, 70), seed=st.integers(0, 1000))
def test_padding_equals_a_plain_loop(num_rows: int, sequence_length: int, seed: int) -> None:
    block = random_block(num_rows, sequence_length, 64, seed)
    batch = collate(block)
    width = batch.input_ids.shape[1]
    assert width % 8 == 0
    assert 0 <= width - int(block.length.max()) < 8
    ends = np.cumsum(block.length)
    for row in range(num_rows):
        tokens = block.tokens[ends[row] - block.length[row] : ends[row]].tolist()
        padding = [0] * (width - len(tokens))
        segment_a = int(block.segment_a_length[row])
        assert batch.input_ids[row].tolist() == tokens + padding
        assert batch.attention_mask[row].tolist() == [True] * len(tokens) + [False] * len(padding)
        assert batch.token_type_ids[row].tolist() == (
            [0] * segment_a + [1] * (len(tokens) - segment_a) + padding
        )
    masked = batch.input_ids.flatten()[batch.masked_lm_positions]
    assert (masked == 4).all()  # every masked position holds [MASK] in these rows


@settings(deadline=None)
@given(num_rows=st.integers(1, 9), seed=st.integers(0, 1000), is_paired=st.booleans())
def test_packed_rows_are_the_padded_ones_without_padding(
    num_rows: int, seed: int, is_paired: bool
) -> None:
    block = random_block(num_rows, 40, 64, seed, is_paired=is_paired)
    padded, packed = collate(block), pack(block)
    is_real = padded.attention_mask
    assert torch.equal(packed.input_ids, padded.input_ids[is_real])
    assert torch.equal(packed.token_type_ids, padded.token_type_ids[is_real])
    places = torch.arange(is_real.shape[1]).expand(is_real.shape)
    assert torch.equal(packed.position_ids, places[is_real])
    assert packed.cu_seqlens.dtype == torch.int32
    assert packed.cu_seqlens.diff().tolist() == is_real.sum(dim=1).tolist()
    assert (packed.cu_seqlens[0], packed.cu_seqlens[-1]) == (0, len(block.tokens))
    assert packed.max_seqlen == int(block.length.max())
    # the same tokens are asked for
    number_of = torch.cumsum(is_real.flatten(), 0) - 1
    assert torch.equal(packed.masked_lm_positions, number_of[padded.masked_lm_positions])
    assert torch.equal(packed.masked_lm_ids, padded.masked_lm_ids)
    assert torch.equal(packed.next_sentence_label, padded.next_sentence_label)
    expected = [-100] * num_rows if block.pair_label is None else block.pair_label.tolist()
    assert packed.next_sentence_label.tolist() == expected
