"""Training from a Hugging Face folder: the weights arrive, and what does not belong is refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import safetensors.torch
import torch

from bert_ds.config.loading import load_run_config
from bert_ds.config.recipe import RunConfig
from bert_ds.errors import CheckpointError, ConfigError, DataError
from bert_ds.model.bert.hf import export_pretraining
from bert_ds.model.bert.init import init_weights
from bert_ds.model.bert.pretraining import BertForPreTraining
from bert_ds.train import setup
from bert_ds.train.init_from import load_init_from
from tests.support.datasets import make_dataset
from tests.support.recipes import write_recipe


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """A recipe, its data, and an export of a model of another seed to begin with."""
    make_dataset(tmp_path / "data" / "seq32")
    config = load_run_config(write_recipe(tmp_path / "recipe"), [f"init_from={tmp_path / 'hf'}"])
    model = BertForPreTraining(config.model)
    init_weights(model, seed=config.seed + 1)
    export_pretraining(
        model,
        vocabulary_file=tmp_path / "data" / "seq32" / "vocab.txt",
        lowercase=True,
        strip_accents=None,
        output_dir=tmp_path / "hf",
    )
    return config


def check(config: RunConfig, folder: Path) -> None:
    setup.open_phase_data(config, folder / "data", config.phases[:1])


def test_the_weights_are_the_folders(config: RunConfig, tmp_path: Path) -> None:
    check(config, tmp_path)
    model = setup.build_model(config, torch.device("cpu"))
    exported = safetensors.torch.load_file(tmp_path / "hf" / "model.safetensors")
    before = {name: p.clone() for name, p in model.named_parameters()}
    assert any(not torch.equal(before[name], exported[name]) for name in exported)
    assert config.init_from is not None
    load_init_from(model, config.init_from)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, exported[name]), name


def test_heads_that_are_not_there_stay_random_and_are_named(
    config: RunConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "hf" / "model.safetensors"
    exported = safetensors.torch.load_file(path)
    encoder = {k: v for k, v in exported.items() if not k.startswith("cls.")}
    safetensors.torch.save_file({**encoder, "classifier.weight": torch.ones(2)}, path)
    model = setup.build_model(config, torch.device("cpu"))
    bias = model.cls.predictions.transform.dense.weight.clone()
    with caplog.at_level(logging.INFO):
        load_init_from(model, tmp_path / "hf")
    assert torch.equal(model.cls.predictions.transform.dense.weight, bias)
    weights = model.bert.embeddings.word_embeddings.weight
    assert torch.equal(weights, exported["bert.embeddings.word_embeddings.weight"])
    assert "cls.seq_relationship.weight" in caplog.text
    assert "not used of" in caplog.text
    assert "classifier.weight" in caplog.text


def test_a_model_of_another_shape_is_refused_with_both_values(
    config: RunConfig, tmp_path: Path
) -> None:
    path = tmp_path / "hf" / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "num_hidden_layers": 3, "hidden_dropout_prob": 0.5}))
    with pytest.raises(ConfigError) as caught:
        check(config, tmp_path)
    assert "num_hidden_layers is 3 there and 1 in the recipe. Set model.*" in str(caught.value)
    assert "dropout" not in str(caught.value)  # is of training, not of the weights


def test_data_of_another_vocabulary_is_refused(config: RunConfig, tmp_path: Path) -> None:
    vocabulary = tmp_path / "hf" / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text().replace("w9\n", "other\n"))
    with pytest.raises(DataError, match=r"another vocabulary than .*vocab\.txt.*--vocab"):
        check(config, tmp_path)


def test_a_folder_without_a_vocabulary_is_refused(
    config: RunConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "hf" / "vocab.txt").unlink()
    check(config, tmp_path)
    assert "has no vocab.txt to compare" in caplog.text


def test_a_folder_without_a_model_is_an_error(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "hf" / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"cannot read .*config\.json"):
        check(config, tmp_path)


def test_a_folder_that_is_not_there_is_reported_with_the_setting(
    config: RunConfig, tmp_path: Path
) -> None:
    missing = config.model_copy(update={"init_from": tmp_path / "none"})
    with pytest.raises(ConfigError, match=r"init_from .*none: no such folder; name a Hugging Face"):
        check(missing, tmp_path)
