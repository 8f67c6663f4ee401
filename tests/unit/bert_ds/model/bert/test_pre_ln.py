"""Pre-LN: the layers by the formula, gradients everywhere, and no export."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from bert_ds.batch import PretrainingBatch
from bert_ds.config.model import ModelConfig
from bert_ds.errors import CheckpointError
from bert_ds.model.bert.hf import export_pretraining
from bert_ds.model.bert.init import init_weights
from bert_ds.model.bert.pretraining import BertForPreTraining
from bert_ds.objectives import PRETRAINING
from tests.unit.bert_ds.model.conftest import random_model, unpadded


@pytest.fixture
def pre_ln_model(tiny_config: ModelConfig) -> BertForPreTraining:
    return random_model(tiny_config.model_copy(update={"layer_norm_position": "pre"}))


def encoded_by_formula(model: BertForPreTraining, ids: torch.Tensor) -> torch.Tensor:
    """One row without padding, from the parameters alone (Xiong et al. 2020, table 1)."""
    p = {name.removeprefix("bert."): value for name, value in model.named_parameters()}

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (32,), p[f"{name}.weight"], p[f"{name}.bias"], 1e-12)

    def dense(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    x = p["embeddings.word_embeddings.weight"][ids]
    x = x + p["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x + p["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for number in range(3):
        layer = f"encoder.layer.{number}"
        given = norm(x, f"{layer}.attention.output.LayerNorm")
        q, k, v = (
            dense(given, f"{layer}.attention.self.{name}").view(-1, 4, 8).transpose(0, 1)
            for name in ("query", "key", "value")
        )
        mixed = (q @ k.transpose(1, 2) / 8**0.5).softmax(-1) @ v
        x = x + dense(mixed.transpose(0, 1).flatten(1), f"{layer}.attention.output.dense")
        given = norm(x, f"{layer}.output.LayerNorm")
        x = x + dense(F.gelu(dense(given, f"{layer}.intermediate.dense")), f"{layer}.output.dense")
    return norm(x, "encoder.LayerNorm")


def test_the_encoder_is_the_formula(pre_ln_model: BertForPreTraining) -> None:
    ids = torch.tensor([2, 33, 7, 66, 41])
    with torch.no_grad():
        found = pre_ln_model.bert(ids[None], torch.zeros(1, 5).long(), torch.ones(1, 5).bool())
        expected = encoded_by_formula(pre_ln_model, ids)
    torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-5)


def test_every_parameter_learns_and_rows_end_to_end_are_the_same(
    pre_ln_model: BertForPreTraining, padded_batch: PretrainingBatch
) -> None:
    losses = []
    for batch in (padded_batch, unpadded(padded_batch)):
        pre_ln_model.zero_grad()
        output = pre_ln_model(batch)
        PRETRAINING.loss_of(output, {"mlm": 1, "nsp": 1}).backward()
        losses.append(output["mlm"].loss_sum.item())
        for name, parameter in pre_ln_model.named_parameters():
            if not name.endswith("attention.self.key.bias"):
                assert parameter.grad.abs().max() > 1e-5, name
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_it_starts_as_layers_that_change_nothing_much(tiny_config: ModelConfig) -> None:
    model = BertForPreTraining(tiny_config.model_copy(update={"layer_norm_position": "pre"}))
    init_weights(model, seed=1)
    norm = model.bert.encoder.LayerNorm
    assert norm is not None
    assert torch.equal(norm.weight, torch.ones(32))
    assert torch.equal(norm.bias, torch.zeros(32))


def test_an_export_is_refused_with_the_reason(
    pre_ln_model: BertForPreTraining, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"layer_norm_position 'pre'.*Hugging Face"):
        export_pretraining(
            pre_ln_model,
            vocabulary_file=tmp_path / "vocab.txt",
            lowercase=True,
            strip_accents=None,
            output_dir=tmp_path / "out",
        )
    assert not (tmp_path / "out").exists()
