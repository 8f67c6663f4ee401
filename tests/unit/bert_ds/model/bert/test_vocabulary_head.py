"""The scores of the vocabulary: tied or not, and rounded up for the matrix products alone."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from bert_ds.batch import PackedBatch
from bert_ds.config.model import ModelConfig
from bert_ds.model.bert.pretraining import BertForPreTraining
from bert_ds.objectives import PRETRAINING
from bert_ds.objectives.cross_entropy import cross_entropy_sum_in_place
from bert_ds.plan import num_parameters
from tests.support.logits import logits_of
from tests.unit.bert_ds.model.conftest import random_model


def outcome(model: BertForPreTraining, batch: PackedBatch) -> dict[str, torch.Tensor]:
    """Losses, counts and gradients."""
    model.zero_grad()
    output = model(batch)
    PRETRAINING.loss_of(output, {"mlm": 1, "nsp": 1}).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {"sums": PRETRAINING.flatten(output).detach(), **gradients}


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_rounded_vocabulary_changes_nothing_that_can_be_seen(
    tiny_config: ModelConfig, packed_batch: PackedBatch, is_tied: bool
) -> None:
    model = random_model(tiny_config.model_copy(update={"tie_word_embeddings": is_tied}))
    with torch.no_grad():  # scores far below 0, the score of the columns that are no piece
        model.cls.predictions.bias -= 50.0
    expected, state = outcome(model, packed_batch), model.state_dict()
    widths = []
    hook = model.cls.predictions.register_forward_hook(lambda *call: widths.append(call[2].shape))
    model.cls.predictions.vocabulary_multiple = 64
    found = outcome(model, packed_batch)
    hook.remove()
    assert widths == [(5, 128)]
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=name)
    assert {name: t.shape for name, t in model.state_dict().items()} == {
        name: t.shape for name, t in state.items()
    }
    ids = torch.ones(1, 3, dtype=torch.int64)
    logits = logits_of(model, ids, ids, ids.bool(), torch.tensor([1, 2]))
    assert logits.mlm.shape == (2, tiny_config.vocab_size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_columns_without_a_piece_take_no_part_and_get_no_gradient(dtype: torch.dtype) -> None:
    scores = torch.randn(6, 12, generator=torch.Generator().manual_seed(1)).to(dtype)
    scores[:, 9:] = 100.0
    labels = torch.tensor([0, 8, 3, 4, 4, 1])
    leaf = scores.clone().requires_grad_()
    loss = cross_entropy_sum_in_place(leaf * 1, labels, 9)
    loss.backward()
    expected = F.cross_entropy(scores[:, :9].float(), labels, reduction="sum")
    torch.testing.assert_close(loss, expected)
    assert torch.equal(leaf.grad[:, 9:], torch.zeros(6, 3, dtype=dtype))
    assert leaf.grad[:, :9].float().sum(dim=1).abs().max() < 1e-2
    assert leaf.grad[:, :9].any()


def test_an_untied_decoder_is_a_parameter_of_its_own(
    tiny_config: ModelConfig, packed_batch: PackedBatch
) -> None:
    model = random_model(tiny_config.model_copy(update={"tie_word_embeddings": False}))
    decoder = dict(model.named_parameters())["cls.predictions.decoder.weight"]
    assert sum(p.numel() for p in model.parameters()) == num_parameters(model.config)
    assert not torch.equal(decoder, model.bert.embeddings.word_embeddings.weight)
    found = outcome(model, packed_batch)
    assert found["cls.predictions.decoder.weight"].any()
    # pieces that are in no row learn from the scores alone
    absent = torch.ones(tiny_config.vocab_size, dtype=torch.bool)
    absent[packed_batch.input_ids] = False
    assert absent.any()
    assert not found["bert.embeddings.word_embeddings.weight"][absent].any()
    assert found["cls.predictions.decoder.weight"][absent].abs().sum(dim=1).all()
    tied = outcome(random_model(tiny_config), packed_batch)
    assert tied["bert.embeddings.word_embeddings.weight"][absent].abs().sum(dim=1).all()
