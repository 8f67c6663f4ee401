"""Rows end to end give what padded rows give: losses, gradients; with and without recomputation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bert_ds.batch import Batch, PackedBatch, PretrainingBatch
from bert_ds.errors import DataError
from bert_ds.model.bert.pretraining import BertForPreTraining
from bert_ds.objectives import PRETRAINING
from tests.unit.bert_ds.model.conftest import unpadded


def losses_and_gradients(
    model: BertForPreTraining, batch: Batch
) -> tuple[list[float], dict[str, torch.Tensor]]:
    model.zero_grad()
    output = model(batch)
    PRETRAINING.loss_of(output, {"mlm": 1, "nsp": 1}).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return PRETRAINING.flatten(output).tolist(), gradients


def assert_same(model: BertForPreTraining, one: Batch, other: Batch) -> None:
    (values, gradients), (expected, theirs) = (
        losses_and_gradients(model, batch) for batch in (one, other)
    )
    assert values == pytest.approx(expected, rel=1e-5)
    assert set(gradients) == set(theirs) == {name for name, _ in model.named_parameters()}
    for name, gradient in gradients.items():
        # Sums over up to 72 tokens of terms near 1, in another order.
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-4, atol=2e-5)


def test_rows_end_to_end_give_the_losses_and_gradients_of_padded_ones(
    tiny_model: BertForPreTraining, padded_batch: PretrainingBatch, packed_batch: PackedBatch
) -> None:
    assert len(packed_batch.input_ids) == 24 + 7 + 15
    assert_same(tiny_model, packed_batch, padded_batch)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.sampled_from([2, 3, 11, 23, 24]), min_size=1, max_size=5), st.integers(0, 99))
def test_whatever_the_lengths(
    tiny_model: BertForPreTraining, lengths: list[int], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    is_real = torch.arange(24) < torch.tensor(lengths)[:, None]
    ids = torch.randint(5, 67, is_real.shape, generator=generator)
    positions = torch.tensor([24 * row + length - 1 for row, length in enumerate(lengths)])
    padded = PretrainingBatch(
        input_ids=ids * is_real,
        token_type_ids=torch.randint(2, ids.shape, generator=generator) * is_real,
        attention_mask=is_real,
        masked_lm_positions=positions,
        masked_lm_ids=torch.randint(5, 67, positions.shape, generator=generator),
        next_sentence_label=torch.randint(2, (len(lengths),), generator=generator),
    )
    assert_same(tiny_model, unpadded(padded), padded)


def test_a_row_is_the_same_whatever_lies_next_to_it(
    tiny_model: BertForPreTraining, padded_batch: PretrainingBatch
) -> None:
    whole = unpadded(padded_batch)
    changed = padded_batch.input_ids.clone()
    changed[0], changed[2] = 9, 10
    other = unpadded(padded_batch._replace(input_ids=changed * padded_batch.attention_mask))
    with torch.no_grad():
        one, two = (tiny_model.encode(batch) for batch in (whole, other))
    begin, end = whole.cu_seqlens[1:3].tolist()
    assert torch.equal(one.tokens[begin:end], two.tokens[begin:end])  # the second row
    assert torch.equal(one.first[1], two.first[1])
    assert not torch.equal(one.tokens[0], two.tokens[0])


@pytest.mark.parametrize("recompute_every", [1, 2, 3, 5])
def test_recomputed_activations_give_the_same_bits_also_with_dropout(
    tiny_model: BertForPreTraining,
    padded_batch: PretrainingBatch,
    packed_batch: PackedBatch,
    recompute_every: int,
) -> None:
    tiny_model.train()
    for batch in (padded_batch, packed_batch):
        torch.manual_seed(1)
        expected, theirs = losses_and_gradients(tiny_model, batch)
        tiny_model.bert.encoder.recompute_every = recompute_every
        torch.manual_seed(1)
        values, gradients = losses_and_gradients(tiny_model, batch)
        tiny_model.bert.encoder.recompute_every = 0
        assert values == expected
        assert all(torch.equal(gradients[name], theirs[name]) for name in theirs)


def test_recomputation_runs_the_layers_twice(
    tiny_model: BertForPreTraining, packed_batch: PackedBatch
) -> None:
    calls = []
    for layer in tiny_model.bert.encoder.layer:
        layer.register_forward_pre_hook(lambda *_: calls.append(1))
    tiny_model.train()
    for recompute_every, expected in ((0, 3), (1, 6), (2, 6)):
        calls.clear()
        tiny_model.bert.encoder.recompute_every = recompute_every
        losses_and_gradients(tiny_model, packed_batch)
        assert len(calls) == expected


def test_a_row_longer_than_the_positions_is_refused(
    tiny_model: BertForPreTraining, packed_batch: PackedBatch
) -> None:
    ends = torch.tensor([0, 46], dtype=torch.int32)
    with pytest.raises(DataError, match=r"rows of 46 tokens exceed max_position_embeddings \(24\)"):
        tiny_model(packed_batch._replace(cu_seqlens=ends, max_seqlen=46))


def test_a_packed_batch_moves_with_all_its_tensors(packed_batch: PackedBatch) -> None:
    moved = packed_batch.to(torch.device("meta"))
    assert moved.max_seqlen == packed_batch.max_seqlen
    for ours, theirs in zip(moved, packed_batch, strict=True):
        if isinstance(theirs, torch.Tensor):
            assert ours.device.type == "meta"
            assert ours.shape == theirs.shape
