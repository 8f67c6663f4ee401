"""What a family of networks is: its shape, known without torch, and its network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bert_ds.config.deepspeed import Precision
from bert_ds.config.model import ModelConfig
from bert_ds.config.recipe import ExecutionConfig, PhaseConfig

if TYPE_CHECKING:
    from bert_ds.model.bert.hf import ImportedModel
    from bert_ds.model.bert.pretraining import BertForPreTraining

ELEMENT_BYTES: dict[Precision, int] = {"fp32": 4, "fp16": 2, "bf16": 2}


class Flops(Protocol):
    """Counts the floating-point operations of forward and backward, without recomputation."""

    def __call__(
        self,
        config: ModelConfig,
        *,
        sum_of_lengths: int,
        sum_of_squared_lengths: int,
        num_predictions: int,
        num_sequences: int,
    ) -> int: ...


@dataclass(frozen=True)
class MicroBatchMemory:
    """Bytes of a micro batch at its highest point."""

    activations: int
    """Of embeddings and layers, with those of one group that is computed again."""
    heads: int
    """Of all heads, the scores of the vocabulary above all."""
    workspace: int
    """What the backward pass works in at that point."""

    @property
    def total(self) -> int:
        """The sum."""
        return self.activations + self.heads + self.workspace


MemoryOfMicroBatch = Callable[
    [ModelConfig, PhaseConfig, ExecutionConfig, Precision, int], MicroBatchMemory
]
"""From a network's shape, a phase, its execution, precision and rows of a micro batch."""


@dataclass(frozen=True)
class FamilyShape:
    """Counts that follow from a network's shape alone."""

    num_parameters: Callable[[ModelConfig], int]
    """Trainable parameters."""
    largest_parameter: Callable[[ModelConfig], int]
    """Elements of the largest parameter."""
    flops: Flops
    """Operations of some rows."""
    micro_batch_memory: MemoryOfMicroBatch
    """Bytes that a micro batch of full rows takes on a GPU at its highest point."""


class Export(Protocol):
    """Writes a Hugging Face folder."""

    def __call__(
        self,
        model: BertForPreTraining,
        *,
        vocabulary_file: Path,
        lowercase: bool,
        strip_accents: bool | None,
        output_dir: Path,
    ) -> None: ...


@dataclass(frozen=True)
class Family:
    """A family's network; with a second family, its model's class becomes a protocol."""

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
