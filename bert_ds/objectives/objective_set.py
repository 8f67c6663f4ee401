"""Several objectives as the one loss that a model is trained on, and the figures that it gives."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from bert_ds.objectives.interface import (
    Encoded,
    Head,
    Heads,
    NumAnswers,
    Objective,
    Sums,
    Term,
)

if TYPE_CHECKING:
    import torch

    from bert_ds.batch import Batch
    from data_prep.contract.manifest import Manifest

Number = TypeVar("Number", float, "torch.Tensor")


@dataclass(frozen=True)
class ObjectiveSet:
    """All objectives of a model.

    The first term leads: its held-out figures decide what is best and when a target is reached.
    """

    objectives: tuple[Objective, ...]
    """In the order of their columns."""

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms of all objectives."""
        return tuple(term for objective in self.objectives for term in objective.terms)

    @property
    def leading(self) -> Term:
        """The term that decides which held-out result is best, and when a target is reached."""
        return self.terms[0]

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of an update's row: losses, then accuracies."""
        losses = tuple(term.loss for term in self.terms)
        return ("loss", *losses, *(term.accuracy for term in self.terms))

    @property
    def held_out_keys(self) -> tuple[str, ...]:
        """Losses and accuracies that a held-out evaluation reports."""
        return tuple(getattr(term, key) for term in self.terms for key in term.held_out)

    def heads_without_answers(self, manifest: Manifest) -> set[Head]:
        """Return the heads that the rows of a dataset do not train."""
        trained = {t.head for each in self.objectives if each.is_in(manifest) for t in each.terms}
        return {term.head for term in self.terms} - trained

    def count(self, batches: Iterable[Batch]) -> dict[str, int]:
        """Count the answers in some batches on the host, by name of the term."""
        totals = dict.fromkeys((term.name for term in self.terms), 0)
        for batch in batches:
            for objective in self.objectives:
                for name, number in objective.count(batch).items():
                    totals[name] += number
        return totals

    def num_scored(self, num_answers: NumAnswers) -> int:
        """Return how many of the answers are scores of the whole vocabulary."""
        return sum(num_answers[term.name] for term in self.terms if term.head == "vocabulary")

    def compute(self, heads: Heads, encoded: Encoded, batch: Batch) -> Sums:
        """Compute the sums of all terms over a micro batch.

        Args:
            heads: the model.
            encoded: what its encoder made of the batch.
            batch: B rows.
        """
        sums: Sums = {}
        for objective in self.objectives:
            sums |= objective.compute(heads, encoded, batch)
        return sums

    def loss(self, loss_sums: Mapping[str, Number], num_answers: NumAnswers) -> Number:
        """Return the loss, in nats: the sum over terms of weight x sum / count.

        This is the one formula of the project. With the sums of a micro batch it gives that
        batch's share of the loss of the global batch; shares add up to the loss over all micro
        batches and ranks, however the batch was split.

        Args:
            loss_sums: of each term, over any part of the global batch.
            num_answers: of each term over the whole global batch; 0 where the sum is 0 too.
        """
        shares = [
            term.weight * (loss_sums[term.name] / max(num_answers[term.name], 1))
            for term in self.terms
        ]
        return functools.reduce(operator.add, shares)

    def loss_of(self, sums: Sums, num_answers: NumAnswers) -> torch.Tensor:
        """Return `loss` for the sums of a micro batch, with its gradient."""
        return self.loss({name: each.loss_sum for name, each in sums.items()}, num_answers)

    def figures(self, sums: Sequence[float], num_answers: NumAnswers) -> dict[str, float | None]:
        """Return the columns of `columns`; None for a term without an answer.

        Args:
            sums: as `flatten` puts them, over the global batch.
            num_answers: of each term.
        """
        names = [term.name for term in self.terms]
        loss_sums = dict(zip(names, sums, strict=False))
        num_correct = dict(zip(names, sums[len(names) :], strict=True))
        figures: dict[str, float | None] = {"loss": self.loss(loss_sums, num_answers)}
        for key, totals in (("loss", loss_sums), ("accuracy", num_correct)):
            for term in self.terms:
                number = num_answers[term.name]
                figures[getattr(term, key)] = totals[term.name] / number if number else None
        return figures

    def flatten(self, sums: Sums) -> torch.Tensor:
        """Return the sums as float64 [2 x terms] on their device: losses, then correct answers."""
        import torch

        in_order = [sums[term.name] for term in self.terms]
        values = [each.loss_sum for each in in_order] + [each.num_correct for each in in_order]
        return torch.stack([value.double() for value in values])

    def held_out(
        self, sums: Sequence[float], num_answers: NumAnswers, commonest: Mapping[str, float]
    ) -> dict[str, Any]:
        """Return what a held-out evaluation reports: counts, losses, accuracies, trivial guesses.

        Args:
            sums: as `flatten` puts them, over all rows.
            num_answers: of each term.
            commonest: how often the commonest answer is right, by name of the term.
        """
        figures = self.figures(sums, num_answers)
        counts = {t.held_out_count: num_answers[t.name] for t in self.terms if t.held_out_count}
        guesses = {
            f"{term.guess.name}_accuracy": commonest[term.name] / max(num_answers[term.name], 1)
            for term in self.terms
            if term.guess is not None
        }
        return {**counts, **{key: figures[key] for key in self.held_out_keys}, **guesses}

    def held_out_text(self, found: Mapping[str, Any]) -> str:
        """Return the few held-out figures that a person looks for, on one line."""
        parts = []
        for term in self.terms:
            if found.get(term.loss) is not None:
                parts.append(f"{term.loss} {found[term.loss]:.3f}")
            if found.get(term.accuracy) is not None:
                parts.append(f"{term.name}_acc {found[term.accuracy]:.4f}")
        return "  ".join(parts)
