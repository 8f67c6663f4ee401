"""Export to and import from Hugging Face folders, judged by transformers itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, get_args

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from tokenizers import BertWordPieceTokenizer, Tokenizer

from bert_ds import files
from bert_ds.batch import PretrainingBatch
from bert_ds.config.model import ModelConfig
from bert_ds.errors import CheckpointError, DataError
from bert_ds.model.bert import hf
from bert_ds.model.bert.hf import export_pretraining, import_pretraining
from bert_ds.model.bert.init import init_weights
from bert_ds.model.bert.pretraining import BertForPreTraining
from tests.support.logits import logits_of
from tests.unit.bert_ds.model.conftest import random_model

LOGIT_TOLERANCE = 1e-5  # as in test_pretraining_model

PIECES = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "The", "caf\u00e9", "cafe", "Caf\u00e9",
    "un", "##aff", "##able", "run", "##ning", ",", ".", "!", "\u4e2d", "\u6587", "a", "\u2028b",
    "##s",
]  # fmt: skip

TEXTS = [
    "The unaffable cafe, running.",
    "the CAF\u00c9 Caf\u00e9 caf\u00e9s!",
    "\u4e2d\u6587 a\u0000 a\ufffd\ta",
    "the [MASK] runs [SEP] a zebra",
    "",
]


@pytest.fixture
def vocabulary_file(tmp_path: Path, tiny_config: ModelConfig) -> Path:
    """As many pieces as the tiny model has rows."""
    pieces = PIECES + [f"filler{i}" for i in range(tiny_config.vocab_size - len(PIECES))]
    path = tmp_path / "vocabulary.txt"
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return path


def export(
    model: BertForPreTraining, vocabulary_file: Path, output_dir: Path, **tokenizer: Any
) -> Path:
    options = {"lowercase": True, "strip_accents": None, **tokenizer}
    export_pretraining(model, vocabulary_file=vocabulary_file, output_dir=output_dir, **options)
    return output_dir


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_tanh"])
def test_transformers_loads_an_export_whole_and_computes_the_same(
    tiny_config: ModelConfig,
    padded_batch: PretrainingBatch,
    vocabulary_file: Path,
    tmp_path: Path,
    hidden_act: str,
) -> None:
    transformers = pytest.importorskip("transformers")
    config = tiny_config.model_copy(update={"hidden_act": hidden_act, "initializer_range": 0.2})
    model = BertForPreTraining(config).eval()
    init_weights(model, seed=4)
    folder = export(model, vocabulary_file, tmp_path / "export")
    theirs, loading = transformers.BertForPreTraining.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(loading.values()), loading
    with torch.no_grad():
        output = theirs.eval()(
            input_ids=padded_batch.input_ids,
            token_type_ids=padded_batch.token_type_ids,
            attention_mask=padded_batch.attention_mask.long(),
        )
        ours = logits_of(model, *padded_batch[:4])
    mlm = output.prediction_logits.flatten(0, 1)[padded_batch.masked_lm_positions]
    torch.testing.assert_close(ours.mlm, mlm, rtol=0, atol=LOGIT_TOLERANCE)
    torch.testing.assert_close(
        ours.nsp, output.seq_relationship_logits, rtol=0, atol=LOGIT_TOLERANCE
    )


@pytest.mark.parametrize("architecture", get_args(hf.Architecture))
@pytest.mark.parametrize("is_tied", [True, False])
def test_an_export_as_any_class_is_whole_and_computes_the_same(
    tiny_config: ModelConfig,
    padded_batch: PretrainingBatch,
    vocabulary_file: Path,
    tmp_path: Path,
    architecture: hf.Architecture,
    is_tied: bool,
) -> None:
    transformers = pytest.importorskip("transformers")
    model = random_model(tiny_config.model_copy(update={"tie_word_embeddings": is_tied}))
    folder = export(model, vocabulary_file, tmp_path / "export", architecture=architecture)
    auto = {"BertForPreTraining": "AutoModelForPreTraining", "BertModel": "AutoModel"}
    theirs, loading = getattr(
        transformers, auto.get(architecture, "AutoModelForMaskedLM")
    ).from_pretrained(folder, output_loading_info=True)
    assert type(theirs).__name__ == architecture
    assert not any(loading.values()), loading
    with torch.no_grad():
        output = theirs.eval()(
            input_ids=padded_batch.input_ids,
            token_type_ids=padded_batch.token_type_ids,
            attention_mask=padded_batch.attention_mask.long(),
        )
        if architecture == "BertModel":
            found = output.last_hidden_state[padded_batch.attention_mask]
            expected = model.bert(*padded_batch[:3])[padded_batch.attention_mask]
        else:
            scores = output[0].flatten(0, 1)
            found = scores[padded_batch.masked_lm_positions]
            expected = logits_of(model, *padded_batch[:4]).mlm
    torch.testing.assert_close(found, expected, rtol=0, atol=LOGIT_TOLERANCE)
    imported = import_pretraining(folder)
    assert imported.config == model.config
    assert imported.ignored == ()
    parameters = dict(model.named_parameters())
    assert imported.weights.keys() == parameters.keys() - set(imported.missing)
    for name, tensor in imported.weights.items():
        assert torch.equal(tensor, parameters[name]), name


def test_auto_classes_load_an_export(
    tiny_model: BertForPreTraining, vocabulary_file: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    folder = export(tiny_model, vocabulary_file, tmp_path / "export")
    for auto in (transformers.AutoModel, transformers.AutoModelForMaskedLM):
        theirs, loading = auto.from_pretrained(folder, output_loading_info=True)
        assert not loading["missing_keys"]
        query = dict(theirs.named_parameters())[
            ("bert." if auto is transformers.AutoModelForMaskedLM else "")
            + "encoder.layer.2.attention.self.query.weight"
        ]
        assert torch.equal(query, tiny_model.bert.encoder.layer[2].attention.self.query.weight)


def test_an_export_keeps_the_dtype(
    tiny_model: BertForPreTraining, vocabulary_file: Path, tmp_path: Path
) -> None:
    folder = export(tiny_model.to(torch.bfloat16), vocabulary_file, tmp_path / "export")
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert all(file.get_tensor(name).dtype == torch.bfloat16 for name in file.keys())
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("lowercase", "strip_accents"),
    [(True, None), (False, None), (True, False), (False, True)],
)
def test_auto_tokenizer_equals_the_word_piece_tokenizer(
    tiny_model: BertForPreTraining,
    vocabulary_file: Path,
    tmp_path: Path,
    lowercase: bool,
    strip_accents: bool | None,
) -> None:
    transformers = pytest.importorskip("transformers")
    folder = export(
        tiny_model,
        vocabulary_file,
        tmp_path / "export",
        lowercase=lowercase,
        strip_accents=strip_accents,
    )
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    # transformers 5 builds it from vocab.txt; transformers 4 and others read this file.
    from_file = Tokenizer.from_file(str(folder / "tokenizer.json"))
    pieces = vocabulary_file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    ours = BertWordPieceTokenizer(
        {piece: index for index, piece in enumerate(pieces)},
        lowercase=lowercase,
        strip_accents=strip_accents,
    )
    for text in TEXTS:
        assert theirs(text)["input_ids"] == ours.encode(text).ids, text
        assert from_file.encode(text).ids == ours.encode(text).ids, text
        pair = theirs(text, TEXTS[0])
        expected = ours.encode(text, TEXTS[0])
        assert pair["input_ids"] == from_file.encode(text, TEXTS[0]).ids == expected.ids
        assert pair["token_type_ids"] == expected.type_ids
    assert theirs.mask_token_id == 4
    assert theirs.pad_token_id == 0
    assert len(theirs) == tiny_model.config.vocab_size
    assert theirs.model_max_length == 24
    assert (folder / "vocab.txt").read_bytes() == vocabulary_file.read_bytes()


def test_casing_options_change_the_pieces(
    tiny_model: BertForPreTraining, vocabulary_file: Path, tmp_path: Path
) -> None:
    """Else the comparison above could pass with the options lost on both sides."""
    transformers = pytest.importorskip("transformers")
    found = []
    for lowercase, strip_accents in [(True, None), (False, None), (True, False)]:
        folder = export(
            tiny_model,
            vocabulary_file,
            tmp_path / f"{lowercase}-{strip_accents}",
            lowercase=lowercase,
            strip_accents=strip_accents,
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        found.append(tokenizer.tokenize("The Caf\u00e9"))
    assert found == [["the", "cafe"], ["The", "Caf\u00e9"], ["the", "caf\u00e9"]]


def test_an_export_replaces_an_earlier_one_and_leaves_nothing_else(
    tiny_model: BertForPreTraining, vocabulary_file: Path, tmp_path: Path
) -> None:
    parent = tmp_path / "parent"
    folder = export(tiny_model, vocabulary_file, parent / "export")
    before = contents(folder)
    assert sorted(before) == list(hf.EXPORTED_FILES)
    export(tiny_model, vocabulary_file, folder)
    assert contents(folder) == before
    with torch.no_grad():
        tiny_model.bert.pooler.dense.bias.add_(1.0)
    export(tiny_model, vocabulary_file, folder)
    after = contents(folder)
    assert {name for name in before if before[name] != after[name]} == {"model.safetensors"}
    assert [path.name for path in parent.iterdir()] == ["export"]


def fail(*args: Any, **kwargs: Any) -> None:
    raise OSError("no space left")


def test_a_failed_write_leaves_the_earlier_export(
    tiny_model: BertForPreTraining,
    vocabulary_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parent = tmp_path / "parent"
    folder = export(tiny_model, vocabulary_file, parent / "export")
    before = contents(folder)
    for module, name in ((hf, "_write_weights"), (hf, "write_tokenizer"), (files, "sync")):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="no space left"):
            patch.setattr(module, name, fail)
            export(tiny_model, vocabulary_file, folder)
        assert contents(folder) == before
        assert [path.name for path in parent.iterdir()] == ["export"]


def test_a_failed_last_rename_puts_the_earlier_export_back(
    tiny_model: BertForPreTraining,
    vocabulary_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parent = tmp_path / "parent"
    folder = export(tiny_model, vocabulary_file, parent / "export")
    before = contents(folder)
    rename = os.rename

    def fail_on_the_new_one(source: Path, target: Path) -> None:
        fail() if source.name == "new" else rename(source, target)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space left"):
        patch.setattr(os, "rename", fail_on_the_new_one)
        export(tiny_model, vocabulary_file, folder)
    assert contents(folder) == before
    assert [path.name for path in parent.iterdir()] == ["export"]


def test_a_folder_with_other_files_is_not_replaced(
    tiny_model: BertForPreTraining, vocabulary_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter1.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match=r"holds chapter1\.tex, which is not part of an"):
        export(tiny_model, vocabulary_file, folder)
    assert (folder / "chapter1.tex").read_text() == "years of work"
    with pytest.raises(CheckpointError, match="is a file"):
        export(tiny_model, vocabulary_file, folder / "chapter1.tex")


@pytest.mark.parametrize(
    ("pieces", "vocab_size", "message"),
    [
        (PIECES, 22, "has 23 pieces and the model 22 rows"),
        (PIECES, 23 + 64, "has 23 pieces and the model 87 rows"),
        (PIECES[:3], 23, "lacks the special pieces"),
        ([*PIECES, "the"], 24, "holds the piece 'the' twice"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_refused(
    tiny_config: ModelConfig, tmp_path: Path, pieces: list[str], vocab_size: int, message: str
) -> None:
    model = BertForPreTraining(tiny_config.model_copy(update={"vocab_size": vocab_size}))
    path = tmp_path / "vocabulary.txt"
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=message):
        export(model, path, tmp_path / "export")
    assert not (tmp_path / "export").exists()


def test_padding_may_be_any_piece(tiny_config: ModelConfig, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = BertForPreTraining(tiny_config.model_copy(update={"vocab_size": 23}))
    path = tmp_path / "vocabulary.txt"
    path.write_text("\n".join([*PIECES[1:], "[PAD]"]) + "\n", encoding="utf-8")
    folder = export(model, path, tmp_path / "export")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    padded = tokenizer(["the", "the the"], padding=True)["input_ids"]
    assert padded[0][-1] == tokenizer.pad_token_id == 22
    assert transformers.AutoModel.from_pretrained(folder).config.pad_token_id == 22


def test_rows_that_only_round_the_vocabulary_up_are_allowed(
    tiny_config: ModelConfig, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    model = BertForPreTraining(tiny_config.model_copy(update={"vocab_size": 64}))
    path = tmp_path / "vocabulary.txt"
    path.write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    folder = export(model, path, tmp_path / "export")
    assert len(transformers.AutoTokenizer.from_pretrained(folder)) == 23
    assert transformers.AutoModel.from_pretrained(folder).config.vocab_size == 64


def test_an_unreadable_vocabulary_is_refused(
    tiny_model: BertForPreTraining, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="cannot read the vocabulary"):
        export(tiny_model, tmp_path / "absent.txt", tmp_path / "export")
    (tmp_path / "latin1.txt").write_bytes(b"[PAD]\ncaf\xe9\n")
    with pytest.raises(DataError, match="cannot read the vocabulary"):
        export(tiny_model, tmp_path / "latin1.txt", tmp_path / "export")


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_tanh"])
def test_import_returns_what_export_wrote(
    tiny_config: ModelConfig, vocabulary_file: Path, tmp_path: Path, hidden_act: str
) -> None:
    config = tiny_config.model_copy(update={"hidden_act": hidden_act, "layer_norm_eps": 1e-7})
    model = BertForPreTraining(config)
    init_weights(model, seed=6)
    imported = import_pretraining(export(model, vocabulary_file, tmp_path / "export"))
    assert imported.config == config
    assert imported.missing == imported.ignored == ()
    parameters = dict(model.named_parameters())
    assert list(imported.weights) == list(parameters)
    for name, weight in imported.weights.items():
        assert torch.equal(weight, parameters[name]), name
    fresh = BertForPreTraining(imported.config)
    fresh.load_state_dict(imported.weights)


@pytest.fixture
def exported(tiny_model: BertForPreTraining, vocabulary_file: Path, tmp_path: Path) -> Path:
    return export(tiny_model, vocabulary_file, tmp_path / "exported")


POOLER = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
NSP = {"cls.seq_relationship.weight", "cls.seq_relationship.bias"}
MLM = {
    "cls.predictions.bias",
    "cls.predictions.transform.dense.weight",
    "cls.predictions.transform.dense.bias",
    "cls.predictions.transform.LayerNorm.weight",
    "cls.predictions.transform.LayerNorm.bias",
}


@pytest.mark.parametrize(
    ("architecture", "missing", "ignored"),
    [
        ("BertForPreTraining", set(), set()),
        ("BertForMaskedLM", POOLER | NSP, set()),
        ("BertModel", MLM | NSP, set()),
        ("BertForSequenceClassification", MLM | NSP, {"classifier.weight", "classifier.bias"}),
    ],
)
def test_folders_that_transformers_saves_are_read_and_missing_heads_named(
    exported: Path,
    tiny_model: BertForPreTraining,
    tmp_path: Path,
    architecture: str,
    missing: set[str],
    ignored: set[str],
) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = getattr(transformers, architecture).from_pretrained(exported)
    theirs.save_pretrained(tmp_path / "theirs")
    imported = import_pretraining(tmp_path / "theirs")
    assert imported.config == tiny_model.config
    assert set(imported.missing) == missing
    assert set(imported.ignored) == ignored
    for name, parameter in tiny_model.named_parameters():
        if name not in missing:
            assert torch.equal(imported.weights[name], parameter), name


def rewrite(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_older_folders_are_read(exported: Path, tiny_model: BertForPreTraining) -> None:
    """pytorch_model.bin with gamma and beta, saved position ids and untied copies."""
    tensors = safetensors.torch.load_file(exported / "model.safetensors")
    older = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in tensors.items()
    }
    older["bert.embeddings.position_ids"] = torch.arange(24)[None]
    word_embeddings = tensors["bert.embeddings.word_embeddings.weight"]
    older["cls.predictions.decoder.weight"] = word_embeddings.clone()
    older["cls.predictions.decoder.bias"] = older.pop("cls.predictions.bias")
    (exported / "model.safetensors").unlink()
    torch.save(older, exported / "pytorch_model.bin")
    imported = import_pretraining(exported)
    assert imported.missing == imported.ignored == ()
    for name, parameter in tiny_model.named_parameters():
        assert torch.equal(imported.weights[name], parameter), name


def test_a_decoder_that_differs_where_it_is_said_to_be_tied_is_refused(exported: Path) -> None:
    tensors = safetensors.torch.load_file(exported / "model.safetensors")
    decoder = tensors["bert.embeddings.word_embeddings.weight"] + 1.0
    rewrite(exported, {**tensors, "cls.predictions.decoder.weight": decoder})
    with pytest.raises(CheckpointError, match="the decoder is not tied"):
        import_pretraining(exported)


def test_an_encoder_with_a_parameter_missing_is_refused(exported: Path) -> None:
    tensors = safetensors.torch.load_file(exported / "model.safetensors")
    del tensors["bert.encoder.layer.1.output.dense.bias"]
    rewrite(exported, tensors)
    with pytest.raises(CheckpointError, match=r"lacks 1 .* bert\.encoder\.layer\.1\.output\.dense"):
        import_pretraining(exported)


def test_a_tensor_of_another_shape_is_refused(exported: Path) -> None:
    tensors = safetensors.torch.load_file(exported / "model.safetensors")
    tensors["bert.pooler.dense.weight"] = torch.zeros(32, 31)
    rewrite(exported, tensors)
    with pytest.raises(CheckpointError, match=r"has shape \[32, 31\], .* \[32, 32\]"):
        import_pretraining(exported)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "roberta"}, "does not describe a BERT"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'; known are gelu"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"is_decoder": True}, "is_decoder True; only False"),
        ({"num_attention_heads": 5}, "must be a multiple of num_attention_heads"),
    ],
)
def test_another_architecture_is_refused(
    exported: Path, changes: dict[str, Any], message: str
) -> None:
    path = exported / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(CheckpointError, match=message):
        import_pretraining(exported)


def test_folders_without_readable_files_are_refused(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot read .*config\.json"):
        import_pretraining(tmp_path / "absent")
    (exported / "model.safetensors").write_bytes(b"not a tensor")
    with pytest.raises(CheckpointError, match="cannot read the weights"):
        import_pretraining(exported)
    (exported / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        import_pretraining(exported)
    (exported / "pytorch_model.bin").write_bytes(b"not a pickle")
    with pytest.raises(CheckpointError, match="damaged or holds more than plain tensors"):
        import_pretraining(exported)
