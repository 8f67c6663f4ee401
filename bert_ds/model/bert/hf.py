"""Export of our BERT to a Hugging Face folder, and import of one.

Neither direction needs `transformers`. Parameter names are equal by construction, so an export
renames nothing but where Hugging Face's class has a prefix less; a tied decoder
(`cls.predictions.decoder.weight`, `.bias`) is left out, as `save_pretrained` leaves it out, and
`from_pretrained` ties it again.
"""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from pydantic import ValidationError
from safetensors import SafetensorError

from bert_ds.config.model import ModelConfig
from bert_ds.errors import CheckpointError
from bert_ds.files import folder_written_at_once, share, write_json
from bert_ds.model.bert.pretraining import BertForPreTraining
from bert_ds.model.family import ImportedModel
from bert_ds.model.hf_tokenizer import SPECIAL_TOKENS, read_vocabulary, write_tokenizer

EXPORTED_FILES = (
    "config.json",
    "model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
)

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
}
"""Hugging Face's name of an activation to ours."""

_HF_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}

_NOT_OF_HUGGING_FACE = {"architecture", "layer_norm_position"}
"""Fields of `ModelConfig` that `BertConfig` lacks."""

_HEAD_PREFIXES = ("bert.pooler.", "cls.")
"""Parameters that a Hugging Face folder may lack: encoders are published without their heads."""

_DECODER_BIAS = "cls.predictions.decoder.bias"
_DECODER_TIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    _DECODER_BIAS: "cls.predictions.bias",
}

Architecture = Literal["BertForPreTraining", "BertForMaskedLM", "BertModel"]
"""Hugging Face's class of an export: what of the heads it has."""

_LEFT_OUT: dict[Architecture, tuple[str, ...]] = {
    "BertForPreTraining": (),
    "BertForMaskedLM": ("bert.pooler.", "cls.seq_relationship."),
    "BertModel": ("cls.",),
}
"""Prefixes of the parameters that the class lacks."""


def export_pretraining(
    model: BertForPreTraining,
    *,
    vocabulary_file: Path,
    lowercase: bool,
    strip_accents: bool | None,
    output_dir: Path,
    architecture: Architecture = "BertForPreTraining",
) -> None:
    """Write a folder that `AutoModel` and `AutoTokenizer` load with no code of ours.

    The folder is written as a whole (`bert_ds.files.folder_written_at_once`); it replaces an
    export that is there already.

    Args:
        model: Whole (not partitioned) weights; they are written in their own dtype.
        vocabulary_file: WordPiece vocabulary, UTF-8, one piece a line.
        lowercase: Whether the model was trained on lowercased text.
        strip_accents: Whether accents were stripped; None where they were exactly if text was
            lowercased, as in the published BERT.
        output_dir: Folder to write. It must not exist, be empty, or hold an earlier export.
        architecture: Hugging Face's class, which decides the heads that are written.

    Raises:
        DataError: The vocabulary is broken or does not fit the model.
        CheckpointError: `output_dir` holds something that is not an export, or Hugging Face's
            BERT cannot represent the model.
    """
    if model.config.layer_norm_position != "post":
        raise CheckpointError(
            f"the model normalises before its sub-layers (model.layer_norm_position "
            f"'{model.config.layer_norm_position}'), which Hugging Face's BERT cannot; it can be "
            "evaluated and used by bert-ds alone"
        )
    vocabulary = read_vocabulary(vocabulary_file, model.config.vocab_size)
    output_dir = output_dir.absolute()
    _check_replaceable(output_dir)
    with folder_written_at_once(output_dir) as folder:
        _write_weights(model, architecture, folder / "model.safetensors")
        dtype = str(model.bert.embeddings.word_embeddings.weight.dtype).removeprefix("torch.")
        pad_token_id = vocabulary[SPECIAL_TOKENS["pad_token"]]
        config = _hf_config(model.config, architecture, dtype, pad_token_id)
        write_json(folder / "config.json", config)
        shutil.copyfile(vocabulary_file, folder / "vocab.txt")
        max_length = model.config.max_position_embeddings
        write_tokenizer(folder, vocabulary, lowercase, strip_accents, max_length)


def import_pretraining(folder: Path) -> ImportedModel:
    """Read a Hugging Face `BertForPreTraining`, `BertForMaskedLM` or `BertModel`.

    Nothing is dropped silently: what is missing from the heads and what has no place in the model
    comes back by name, and the caller decides.

    Args:
        folder: Holds config.json and model.safetensors (or the older pytorch_model.bin).

    Raises:
        CheckpointError: The folder is not a BERT that our model can hold: another architecture or
            activation, an encoder with parameters missing or of a wrong shape, or a decoder that
            differs from the word embeddings although config.json ties it to them.
    """
    config = read_hf_config(folder)
    found = {_our_name(name): tensor for name, tensor in _read_tensors(folder).items()}
    found.pop("bert.embeddings.position_ids", None)  # a buffer that transformers < 4.31 saved
    if config.tie_word_embeddings:
        _drop_tied_decoder(found, folder)
    elif _DECODER_BIAS in found:  # Hugging Face computes with this one
        found["cls.predictions.bias"] = found.pop(_DECODER_BIAS)
    with torch.device("meta"):
        expected = dict(BertForPreTraining(config).named_parameters())

    missing = tuple(name for name in expected if name not in found)
    missing_encoder = [name for name in missing if not name.startswith(_HEAD_PREFIXES)]
    if missing_encoder:
        raise CheckpointError(
            f"{folder} lacks {len(missing_encoder)} parameters of the encoder that its config.json "
            f"describes, the first is {missing_encoder[0]}; it is not a whole BERT."
        )
    weights = {name: found[name] for name in expected if name in found}
    for name, tensor in weights.items():
        if tensor.shape != expected[name].shape:
            raise CheckpointError(
                f"{name} in {folder} has shape {list(tensor.shape)}, and its config.json asks for "
                f"{list(expected[name].shape)}; the two files do not belong together."
            )
    ignored = tuple(name for name in found if name not in expected)
    return ImportedModel(config=config, weights=weights, missing=missing, ignored=ignored)


def _hf_config(
    config: ModelConfig, architecture: Architecture, dtype: str, pad_token_id: int
) -> dict[str, Any]:
    """Return the fields of `BertConfig`; ours have the same names."""
    return {
        "architectures": [architecture],
        "model_type": "bert",
        **config.model_dump(exclude=_NOT_OF_HUGGING_FACE),
        "hidden_act": _HF_ACTIVATIONS[config.hidden_act],
        "position_embedding_type": "absolute",
        "classifier_dropout": None,
        "pad_token_id": pad_token_id,
        "use_cache": True,
        "dtype": dtype,
    }


def _write_weights(model: BertForPreTraining, architecture: Architecture, path: Path) -> None:
    tensors = {
        name: parameter.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        if not name.startswith(_LEFT_OUT[architecture])
    }
    if architecture == "BertModel":
        tensors = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    elif not model.config.tie_word_embeddings:
        tensors[_DECODER_BIAS] = tensors["cls.predictions.bias"].clone()
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    share(path)


def _check_replaceable(output_dir: Path) -> None:
    """Refuse a folder whose replacement would delete something that we did not write."""
    if not output_dir.exists():
        return
    if not output_dir.is_dir():
        raise CheckpointError(f"{output_dir} is a file; choose a folder for the export.")
    foreign = sorted(path.name for path in output_dir.iterdir() if path.name not in EXPORTED_FILES)
    if foreign:
        raise CheckpointError(
            f"{output_dir} holds {foreign[0]}, which is not part of an export and would be lost; "
            "choose another folder."
        )


def read_hf_config(folder: Path) -> ModelConfig:
    """Read the shape of the BERT in a Hugging Face folder.

    Raises:
        CheckpointError: config.json cannot be read or is not that of a BERT our model can hold.
    """
    path = folder / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise CheckpointError(f"cannot read {path}: {err}") from err
    if not isinstance(values, dict) or values.get("model_type") != "bert":
        raise CheckpointError(f"{path} does not describe a BERT (model_type must be 'bert').")
    needed = {
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
    }
    for key, value in needed.items():
        if values.get(key, value) != value:
            raise CheckpointError(f"{path} has {key} {values[key]!r}; only {value!r} is known.")
    activation = values.get("hidden_act", "gelu")
    if activation not in _ACTIVATIONS:
        raise CheckpointError(
            f"{path} has hidden_act '{activation}'; known are {', '.join(_ACTIVATIONS)}."
        )
    known = ModelConfig.model_fields.keys() - _NOT_OF_HUGGING_FACE
    fields = {key: values[key] for key in known if key in values}
    fields["hidden_act"] = _ACTIVATIONS[activation]
    try:
        return ModelConfig.model_validate(fields)
    except ValidationError as err:
        raise CheckpointError(f"{path} holds values out of range: {err}") from err


def _read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    path = folder / "model.safetensors"
    older = folder / "pytorch_model.bin"
    try:
        if path.exists():
            return safetensors.torch.load_file(path)
        if older.exists():
            path = older
            tensors: dict[str, torch.Tensor] = torch.load(
                older, map_location="cpu", weights_only=True
            )
            return tensors
    except pickle.UnpicklingError as err:
        # torch's own message proposes weights_only=False, which would run code in the file.
        raise CheckpointError(f"{older} is damaged or holds more than plain tensors.") from err
    except (OSError, RuntimeError, SafetensorError) as err:
        raise CheckpointError(f"cannot read the weights in {path}: {err}") from err
    raise CheckpointError(
        f"{folder} holds neither model.safetensors nor pytorch_model.bin; sharded weights "
        "(model.safetensors.index.json) must be saved as one file first."
    )


def _our_name(name: str) -> str:
    """Return our name of a tensor in a Hugging Face folder.

    `BertModel` is saved without the prefix `bert.`; checkpoints converted from TensorFlow call
    LayerNorm's weight and bias gamma and beta.
    """
    if name.startswith(("embeddings.", "encoder.", "pooler.")):
        name = f"bert.{name}"
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )


def _drop_tied_decoder(found: dict[str, torch.Tensor], folder: Path) -> None:
    """Remove the decoder's own copies, after checking that they are copies."""
    for copy_name, name in _DECODER_TIES.items():
        copy = found.pop(copy_name, None)
        if copy is not None and not torch.equal(copy, found.setdefault(name, copy)):
            raise CheckpointError(
                f"{copy_name} in {folder} differs from {name}: the decoder is not tied to the "
                'word embeddings; set "tie_word_embeddings": false in its config.json if that is '
                "meant."
            )
