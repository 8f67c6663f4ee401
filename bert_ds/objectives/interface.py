"""The interface of an objective: what model, loop, metrics, evaluation and reports know of it.

An objective turns an encoder's output into named terms. The loss of an update is the sum over all
terms of weight x (sum over the global batch) / (count over the global batch), so the counts of the
global batch must be known before the first forward pass. Nothing here imports torch when it is
imported: settings, plans and reports need the names of the terms and no tensors.

Legend: B rows, P answers of a term in a batch, H hidden_size, V vocab_size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

    from bert_ds.batch import Batch
    from data_prep.contract.manifest import Manifest

Head = Literal["vocabulary", "pairs"]
"""Parts of a model that turn hidden states into scores: of the pieces, or of a row's pair label."""


class Encoded(NamedTuple):
    """What an encoder makes of a batch."""

    tokens: torch.Tensor
    """[tokens, H], the last hidden states of all positions, row after row."""
    first: torch.Tensor
    """[B, H], the last hidden states of each row's first token."""


class Heads(Protocol):
    """What an objective needs of a model."""

    @property
    def vocab_size(self) -> int:
        """V, pieces in the vocabulary."""

    def score_vocabulary(self, states: torch.Tensor) -> torch.Tensor:
        """Return the scores of hidden states [P, H]: [P, V or more]; columns from V on are void."""

    def score_pairs(self, first: torch.Tensor) -> torch.Tensor:
        """Return the scores of both pair labels, [B, 2], from the rows' first states [B, H]."""


class TermSums(NamedTuple):
    """A term's sums over one micro batch; they stay on the device."""

    loss_sum: torch.Tensor
    """float32 scalar, in nats: a sum, since the denominator is a count over the global batch."""
    num_correct: torch.Tensor
    """int64 scalar, answers whose best-scored class is the right one."""


Sums = dict[str, TermSums]
"""Sums of each term, by its name."""
NumAnswers = Mapping[str, int]
"""How many answers each term is measured on in a batch or an update, by name of the term."""


@dataclass(frozen=True)
class Guess:
    """The trivial guess that an accuracy is compared with: always the commonest answer."""

    name: str
    """Its held-out accuracy is the key `<name>_accuracy`."""
    label: str
    """Name for people."""
    histogram: Callable[[Batch, int], torch.Tensor]
    """From a batch and V: how often each class is the answer, a vector on the batch's device."""


@dataclass(frozen=True)
class Term:
    """One summand of the loss."""

    name: str
    """Key of its sums; its columns are `<name>_loss` and `<name>_accuracy`."""
    label: str
    """Name for people."""
    answer: str
    """What the loss is a mean over, one of them: "prediction"."""
    answers_label: str
    """The same for people, in a table."""
    head: Head
    """The part of the model that scores the answers."""
    held_out: tuple[Literal["loss", "accuracy"], ...]
    """What a held-out evaluation reports."""
    held_out_count: str | None = None
    """Key of the number of held-out answers; None where that is the number of rows."""
    guess: Guess | None = None
    """What the held-out accuracy is compared with."""
    weight: float = 1.0
    """Factor of the term in the loss."""

    @property
    def loss(self) -> str:
        """Column of its loss: nats an answer."""
        return f"{self.name}_loss"

    @property
    def accuracy(self) -> str:
        """Column of its share of correct answers."""
        return f"{self.name}_accuracy"


@dataclass(frozen=True)
class Objective:
    """A task that a model is trained for."""

    terms: tuple[Term, ...]
    """Its summands of the loss."""
    is_in: Callable[[Manifest], bool]
    """Whether the rows of a dataset have answers for it."""
    count: Callable[[Batch], NumAnswers]
    """Count the answers in a batch on the host."""
    compute: Callable[[Heads, Encoded, Batch], Sums]
    """Compute the sums of its terms; softmax and logarithm are float32 in every precision."""
