"""The interface of a family of networks, and what a new one, such as ModernBERT, has to provide.

In this order:

1. Settings: a value of `architecture` in `bert_ds.config.model.ModelConfig`, equal to Hugging
   Face's `model_type`, and the fields that the family needs besides, named as in Hugging Face's
   config.
2. Counts: a `FamilyShape` computed from the settings without torch, entered in
   `bert_ds.model.shapes.SHAPES`.
3. The network: a `torch.nn.Module` in a folder of its own, built from a `ModelConfig`. Its layers
   take `LayerNorm`, `Dropout` and `attend` from this folder, which choose the kernels for a device.
   The rest of the package uses these members and no others:

   - `config`, the settings that it was built from;
   - `forward(batch)`, the terms' sums: `PRETRAINING.compute(self, self.encode(batch), batch)`;
   - `encode(batch)`, the `Encoded` hidden states, for padded rows and for rows end to end;
   - `vocab_size`, `score_vocabulary` and `score_pairs`, the `bert_ds.objectives.Heads`;
   - `parameters_of_heads(heads)`, the names of the parameters that nothing but these heads uses;
   - `encoder.recompute_every` and `encoder.layer`, which execution settings act on.
4. Initial weights: a function of a seed and of the parameters' names.
5. Hugging Face folders: the settings and weights are read from one, and written as one.
6. A `Family` of these functions, entered in `bert_ds.model.families.FAMILIES`.

Parameters keep Hugging Face's names: an export then renames next to nothing. Biases and weights of
LayerNorm must be recognised by `bert_ds.optim.param_groups`. `tests/unit/bert_ds/model` holds every
family to this, with `transformers` as the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bert_ds.config.deepspeed import Precision
from bert_ds.config.model import ModelConfig
from bert_ds.config.recipe import ExecutionConfig, PhaseConfig

if TYPE_CHECKING:
    import torch

    from bert_ds.model.bert.hf import Architecture
    from bert_ds.model.bert.pretraining import BertForPreTraining

ELEMENT_BYTES: dict[Precision, int] = {"fp32": 4, "fp16": 2, "bf16": 2}


class Flops(Protocol):
    """A function that counts the floating-point operations of training on some rows."""

    def __call__(
        self,
        config: ModelConfig,
        *,
        sum_of_lengths: int,
        sum_of_squared_lengths: int,
        num_predictions: int,
        num_sequences: int,
    ) -> int:
        """Count the operations of forward and backward, without recomputation.

        Args:
            config: shape of the network.
            sum_of_lengths: real tokens of all rows.
            sum_of_squared_lengths: sum of the squares of the rows' lengths.
            num_predictions: masked positions of all rows.
            num_sequences: number of rows.
        """
        ...


@dataclass(frozen=True)
class MicroBatchMemory:
    """Bytes of a micro batch at its highest point."""

    activations: int
    """Bytes of embeddings and layers, with those of one group that is computed again."""
    heads: int
    """Bytes of all heads, the scores of the vocabulary above all."""
    workspace: int
    """Bytes that the backward pass works in at that point."""

    @property
    def total(self) -> int:
        """The sum of the three."""
        return self.activations + self.heads + self.workspace


MemoryOfMicroBatch = Callable[
    [ModelConfig, PhaseConfig, ExecutionConfig, Precision, int], MicroBatchMemory
]
"""From a network's shape, a phase, its execution, precision and rows of a micro batch."""


@dataclass(frozen=True)
class FamilyShape:
    """Counts that follow from a network's shape alone."""

    num_parameters: Callable[[ModelConfig], int]
    """Count the trainable parameters, heads included."""
    largest_parameter: Callable[[ModelConfig], int]
    """Count the elements of the largest parameter."""
    flops: Flops
    """Count the operations of training on some rows."""
    micro_batch_memory: MemoryOfMicroBatch
    """Count the bytes that a micro batch of full rows takes on a GPU at its highest point."""


class ImportedModel(NamedTuple):
    """What was found in a Hugging Face folder."""

    config: ModelConfig
    """Shape of the network."""
    weights: dict[str, torch.Tensor]
    """Tensors by our parameter name, on the CPU in the folder's dtype; shapes are right."""
    missing: tuple[str, ...]
    """Parameters of the heads that the folder lacks; the encoder is always whole."""
    ignored: tuple[str, ...]
    """Tensors of the folder that have no place in the model, such as those of task heads."""


class Export(Protocol):
    """A function that writes a Hugging Face folder."""

    def __call__(
        self,
        model: BertForPreTraining,
        *,
        vocabulary_file: Path,
        lowercase: bool,
        strip_accents: bool | None,
        output_dir: Path,
        architecture: Architecture = ...,
    ) -> None:
        """Write a folder that `AutoModel` and `AutoTokenizer` load with no code of ours.

        Args:
            model: the network with its whole weights.
            vocabulary_file: WordPiece vocabulary, UTF-8, one piece a line.
            lowercase: whether the model was trained on lowercased text.
            strip_accents: whether accents were stripped; None where they were exactly if text was
                lowercased.
            output_dir: folder to write; an earlier export there is replaced.
            architecture: Hugging Face's class, which decides the heads that are written.
        """
        ...


@dataclass(frozen=True)
class Family:
    """The functions of a family; with a second one, the class of its models becomes a protocol."""

    build: Callable[[ModelConfig], BertForPreTraining]
    """Build a network with its heads; weights are not set."""
    init_weights: Callable[[BertForPreTraining, int], None]
    """Set all weights in place, from a seed."""
    read_hf_config: Callable[[Path], ModelConfig]
    """Read the shape of the network in a Hugging Face folder."""
    import_hf: Callable[[Path], ImportedModel]
    """Read the weights in a Hugging Face folder."""
    export_hf: Export
    """Write a Hugging Face folder."""
    exported_files: tuple[str, ...]
    """Names of all files that `export_hf` writes."""
