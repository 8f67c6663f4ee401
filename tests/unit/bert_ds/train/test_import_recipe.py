"""Hugging Face folders as recipes, and for fill-mask; a published model where it is given."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tokenizers import BertWordPieceTokenizer

from bert_ds.cli import main
from bert_ds.config.loading import load_run_config
from bert_ds.config.model import ModelConfig
from bert_ds.errors import CheckpointError, ConfigError, DataError
from bert_ds.inference import fill_mask, load_usable
from bert_ds.model.bert.hf import Architecture, export_pretraining, import_pretraining
from bert_ds.model.bert.init import init_weights
from bert_ds.model.bert.pretraining import BertForPreTraining
from bert_ds.model.hf_tokenizer import read_tokenizer
from bert_ds.train import setup
from bert_ds.train.import_recipe import INIT, import_as_recipe
from tests.support.datasets import make_dataset, vocabulary_text
from tests.support.logits import logits_of
from tests.support.recipes import TINY_MODEL, tiny_recipe, write_recipe

SHAPE = {**TINY_MODEL, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}


def published(
    folder: Path,
    architecture: Architecture = "BertForPreTraining",
    vocab_size: int = 64,
    **tokenizer: Any,
) -> BertForPreTraining:
    """Write a Hugging Face folder of another shape than the recipe's; returns its model."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    vocabulary = folder.parent / "published.txt"
    vocabulary.write_text(vocabulary_text(64), "utf-8")
    model = BertForPreTraining(ModelConfig.model_validate({**SHAPE, "vocab_size": vocab_size}))
    init_weights(model, seed=7)
    options = {"lowercase": True, "strip_accents": None, **tokenizer}
    export_pretraining(
        model,
        vocabulary_file=vocabulary,
        output_dir=folder,
        architecture=architecture,
        **options,
    )
    return model.eval()


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path / "recipe")


def test_the_recipe_trains_the_folders_model(recipe: Path, tmp_path: Path) -> None:
    model = published(tmp_path / "hf")
    imported = import_as_recipe(tmp_path / "hf", recipe, tmp_path / "mine")
    assert imported.missing == imported.ignored == ()
    assert imported.num_rows_cut == 0
    shutil.rmtree(tmp_path / "hf")
    (tmp_path / "mine").rename(tmp_path / "moved")  # it stands alone and may be moved
    config = load_run_config(tmp_path / "moved")
    assert config.recipe == "moved"
    assert config.model == model.config
    assert config.init_from == tmp_path / "moved" / INIT
    former = load_run_config(recipe)
    assert config.phases == former.phases
    make_dataset(tmp_path / "data" / "seq32")
    setup.open_phase_data(config, tmp_path / "data", config.phases[:1])
    found = import_pretraining(config.init_from)
    for name, parameter in model.named_parameters():
        assert torch.equal(found.weights[name], parameter), name


def test_heads_that_the_folder_lacks_begin_as_a_run_of_the_recipe_would(
    recipe: Path, tmp_path: Path
) -> None:
    published(tmp_path / "hf", "BertModel")
    imported = import_as_recipe(tmp_path / "hf", recipe, tmp_path / "mine")
    assert "cls.predictions.transform.dense.weight" in imported.missing
    fresh = BertForPreTraining(ModelConfig.model_validate(SHAPE))
    init_weights(fresh, load_run_config(recipe).seed)
    found = import_pretraining(tmp_path / "mine" / INIT)
    assert found.missing == ()
    for name, parameter in fresh.named_parameters():
        assert torch.equal(found.weights[name], parameter) == (
            name in imported.missing or name.endswith("bias") or "LayerNorm" in name
        ), name


def test_rows_that_only_round_the_vocabulary_up_are_left_out(recipe: Path, tmp_path: Path) -> None:
    model = published(tmp_path / "hf", vocab_size=72)
    imported = import_as_recipe(tmp_path / "hf", recipe, tmp_path / "mine")
    assert imported.num_rows_cut == 8
    found = import_pretraining(tmp_path / "mine" / INIT)
    assert found.config.vocab_size == 64
    words = model.bert.embeddings.word_embeddings.weight
    assert torch.equal(found.weights["bert.embeddings.word_embeddings.weight"], words[:64])


@pytest.mark.parametrize(
    ("lowercase", "strip_accents", "flags"),
    [
        (True, None, ""),
        (False, None, " --cased"),
        (True, False, " --no-strip-accents"),
        (False, True, " --cased --strip-accents"),
    ],
)
def test_the_next_command_cuts_text_as_the_model_knows_it(
    recipe: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    lowercase: bool,
    strip_accents: bool | None,
    flags: str,
) -> None:
    published(tmp_path / "hf", lowercase=lowercase, strip_accents=strip_accents)
    command = ["import-hf", "--model", tmp_path / "hf", "--recipe", recipe, "--output-dir"]
    assert main([str(word) for word in [*command, tmp_path / "mine"]]) == 0
    vocabulary = tmp_path / "mine" / INIT / "vocab.txt"
    assert f"bert-prep shards --vocab {vocabulary}{flags} --input" in capsys.readouterr().out
    found = read_tokenizer(tmp_path / "mine" / INIT)
    assert (found.lowercase, found.strip_accents) == (lowercase, strip_accents)
    for file in ("tokenizer_config.json", "vocab.txt"):  # as newer and older folders have it
        (tmp_path / "hf" / file).unlink()
    assert read_tokenizer(tmp_path / "hf") == found


def test_nothing_is_written_where_the_import_fails(recipe: Path, tmp_path: Path) -> None:
    published(tmp_path / "hf")
    target = tmp_path / "deep" / "mine"

    def fails_with(error: type[Exception], message: str, recipe: Path = recipe) -> None:
        with pytest.raises(error, match=message):
            import_as_recipe(tmp_path / "hf", recipe, target)
        assert not target.exists()
        assert not list(target.parent.glob(".*"))

    target.parent.mkdir()
    longer = tiny_recipe()
    longer["phases"][1]["sequence_length"] = 128
    longer["model"]["max_position_embeddings"] = 128
    longer = write_recipe(tmp_path / "longer", longer)
    fails_with(ConfigError, r"sequence_length \(128\) must not exceed .* \(64\)", longer)
    fails_with(ConfigError, "no recipe folder", tmp_path / "absent")
    vocabulary = tmp_path / "hf" / "vocab.txt"
    pieces = vocabulary.read_text()
    vocabulary.write_text(pieces + "one\nmore\n")
    fails_with(DataError, "has 66 pieces and the model 64 rows")
    vocabulary.unlink()
    (tmp_path / "hf" / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    fails_with(CheckpointError, "has no vocab.txt, nor a tokenizer.json with a WordPiece")
    vocabulary.write_text(pieces)
    (tmp_path / "hf" / "config.json").write_text('{"model_type": "roberta"}')
    fails_with(CheckpointError, "does not describe a BERT")
    target.mkdir()
    (target / "thesis.tex").touch()
    with pytest.raises(CheckpointError, match="is not an empty folder"):
        import_as_recipe(tmp_path / "hf", recipe, target)
    assert [path.name for path in target.iterdir()] == ["thesis.tex"]


def test_fill_mask_takes_a_hugging_face_folder(tmp_path: Path) -> None:
    model = published(tmp_path / "hf", "BertForMaskedLM")
    usable = load_usable(tmp_path / "hf")
    (guesses,) = fill_mask(usable, "w9 [MASK]", top_k=64)
    ids = torch.tensor([usable.tokenizer.encode("w9 [MASK]").ids])
    batch = (ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool))
    expected = logits_of(model, *batch, torch.tensor([2])).mlm[0].detach().softmax(dim=0)
    assert len(guesses) == 64
    for guess in guesses:
        place = usable.tokenizer.token_to_id(guess.piece)
        assert guess.probability == pytest.approx(float(expected[place]), rel=1e-5)
    published(tmp_path / "body", "BertModel")
    with pytest.raises(CheckpointError, match="has no masked language model's head"):
        load_usable(tmp_path / "body")


def test_a_published_model_gives_the_hidden_states_of_transformers(
    bert_folder: Path, recipe: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    import_as_recipe(bert_folder, recipe, tmp_path / "mine")
    folder = tmp_path / "mine" / INIT
    imported = import_pretraining(folder)
    model = BertForPreTraining(imported.config).eval()
    model.load_state_dict(imported.weights)
    text = ["The unaffable caf\u00e9 was running out of 23 croissants!", "Why?"]
    theirs = transformers.AutoModel.from_pretrained(bert_folder).eval()
    encoded = transformers.AutoTokenizer.from_pretrained(bert_folder)(
        text, padding=True, return_tensors="pt"
    )
    tokenizer = BertWordPieceTokenizer(str(folder / "vocab.txt"))
    is_real = encoded["attention_mask"].bool()
    for row, mask, line in zip(encoded["input_ids"], is_real, text, strict=True):
        assert tokenizer.encode(line).ids == row[mask].tolist()
    with torch.no_grad():
        expected = theirs(**encoded).last_hidden_state
        padded = model.bert(encoded["input_ids"], encoded["token_type_ids"], is_real)
    torch.testing.assert_close(padded[is_real], expected[is_real], rtol=0, atol=1e-5)
    # back to Hugging Face, with no code of ours
    again = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        found = again(**encoded).last_hidden_state
    torch.testing.assert_close(found[is_real], expected[is_real], rtol=0, atol=1e-6)
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    assert weights["bert.encoder.layer.0.output.dense.weight"].dtype == torch.float32
    assert json.loads((folder / "config.json").read_text())["model_type"] == "bert"
