"""Packing: which row goes where, one shape for all, and losses that do not know of it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_ds.batch import NO_PAIR_LABEL, Batch, PackedBatch
from bert_ds.config.model import ModelConfig
from bert_ds.data.collate import pack
from bert_ds.data.layout import empty_micro_batch, first_fit, micro_batches
from bert_ds.model.bert.init import init_weights
from bert_ds.model.bert.pretraining import BertForPreTraining
from bert_ds.objectives import PRETRAINING
from data_prep.contract.format import Block
from tests.support.datasets import random_block


def packed(rows: Block, size: int, length: int) -> list[PackedBatch]:
    found = micro_batches(rows, "packed", size, length)
    return [batch for batch in found if isinstance(batch, PackedBatch)]


def test_a_hand_worked_packing() -> None:
    # falling: 9 7 6 5 3 2; room for 10: [9] [7 3] [6 2] [5]; the 2 fits the third first
    lengths = np.array([5, 7, 2, 9, 3, 6])
    assert first_fit(lengths, 10).tolist() == [3, 1, 2, 0, 1, 2]
    assert first_fit(np.array([4, 4, 4]), 12).tolist() == [0, 0, 0]
    assert first_fit(np.array([4]), 4).tolist() == [0]


def plain_first_fit(lengths: list[int], capacity: int) -> list[int]:
    room: list[int] = []
    places = [0] * len(lengths)
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        open_ones = [place for place, left in enumerate(room) if left >= lengths[row]]
        if not open_ones:
            room.append(capacity)
            open_ones = [len(room) - 1]
        places[row] = open_ones[0]
        room[open_ones[0]] -= lengths[row]
    return places


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=60), st.integers(1, 5))
def test_it_is_first_fit_and_never_takes_more_micro_batches_than_cutting(
    lengths: list[int], size: int
) -> None:
    places = first_fit(np.array(lengths), size * 20).tolist()
    assert places == plain_first_fit(lengths, size * 20)
    assert set(places) == set(range(max(places) + 1))
    assert max(places) + 1 <= -(-len(lengths) // size)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 1000), st.booleans())
def test_every_row_is_there_once_and_all_micro_batches_have_one_shape(
    num_rows: int, size: int, seed: int, is_paired: bool
) -> None:
    rows = random_block(num_rows, 40, 64, seed, is_paired=is_paired)
    whole = pack(rows)
    expected = sorted(rows_of(whole))
    batches = packed(rows, size, 40)
    assert sorted(row for batch in batches for row in rows_of(batch)) == expected
    for batch in batches:
        assert len(batch.input_ids) == size * 40
        assert len(batch.token_type_ids) == len(batch.position_ids) == size * 40
        assert batch.max_seqlen == 40
        assert batch.cu_seqlens.dtype == torch.int32
        assert batch.cu_seqlens[-1] == size * 40
        lengths = batch.cu_seqlens.diff()
        assert 0 < lengths.min()
        assert lengths.max() <= 40
        assert torch.equal(
            batch.position_ids, torch.cat([torch.arange(int(length)) for length in lengths])
        )
        assert len(batch.next_sentence_label) == len(lengths)
    assert sum(len(batch.masked_lm_ids) for batch in batches) == len(rows.masked_lm_ids)


def rows_of(batch: PackedBatch) -> list[tuple[list[int], list[int], list[tuple[int, int]], int]]:
    """Pieces, segments, masked places and label of each row that holds a piece."""
    asked = dict(zip(batch.masked_lm_positions.tolist(), batch.masked_lm_ids.tolist(), strict=True))
    found = []
    for row, (start, end) in enumerate(pairwise(batch.cu_seqlens.tolist())):
        ids = batch.input_ids[start:end].tolist()
        masked = [(place - start, asked[place]) for place in range(start, end) if place in asked]
        label = int(batch.next_sentence_label[row])
        if any(ids):
            found.append((ids, batch.token_type_ids[start:end].tolist(), masked, label))
        else:
            assert label == NO_PAIR_LABEL
            assert not masked
            assert not batch.token_type_ids[start:end].any()
    return found


@pytest.fixture
def model() -> BertForPreTraining:
    config = ModelConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=40,
        initializer_range=0.2,
    )
    model = BertForPreTraining(config)
    init_weights(model, seed=1)
    return model.eval()


def summed(
    model: BertForPreTraining, batches: tuple[Batch, ...]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Losses and counts over the batches, and gradients."""
    model.zero_grad()
    sums = torch.zeros(4, dtype=torch.float64)
    for batch in batches:
        output = model(batch)
        PRETRAINING.loss_of(output, {"mlm": 1, "nsp": 1}).backward()
        sums += PRETRAINING.flatten(output).detach()
    return sums, {
        name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize("is_paired", [True, False])
def test_losses_and_gradients_are_those_of_rows_as_they_come_and_of_padded_ones(
    model: BertForPreTraining, is_paired: bool
) -> None:
    rows = random_block(23, 40, 64, 5, min_length=8, is_paired=is_paired)
    found = micro_batches(rows, "packed", 4, 40)
    assert len(found) == 4  # of the 6 that cutting makes
    of_rows = summed(model, found)
    for layout in ("unpadded", "padded"):
        expected = summed(model, micro_batches(rows, layout, 4, 40))
        torch.testing.assert_close(of_rows[0], expected[0], rtol=1e-5, atol=1e-5)
        for name, gradient in expected[1].items():
            torch.testing.assert_close(of_rows[1][name], gradient, rtol=1e-4, atol=1e-4, msg=name)


def test_an_empty_micro_batch_has_the_shape_and_adds_nothing(model: BertForPreTraining) -> None:
    rows = random_block(5, 40, 64, 5)
    empty = empty_micro_batch(rows, 3, 40)
    assert isinstance(empty, PackedBatch)
    assert empty.input_ids.shape == packed(rows, 3, 40)[0].input_ids.shape
    assert empty.cu_seqlens.tolist() == [0, 40, 80, 120]
    sums, gradients = summed(model, (empty,))
    assert sums.tolist() == [0.0, 0.0, 0.0, 0.0]
    assert set(gradients) == {name for name, _ in model.named_parameters()}
    assert not any(gradient.any() for gradient in gradients.values())
