"""Held-out evaluation over all ranks: every held-out row counts exactly once.

The micro batches of the split are numbered, and rank r computes those whose number is r modulo the
world size. Each rank adds up its sums and counts in float64; one all-reduce adds up those of all
ranks, and only then are means taken. A mean of the ranks' means would be wrong, since shares differ
in size.

Hard here: under ZeRO 3 each forward pass gathers the weights from all ranks, so all ranks must run
equally many, or those that run more hang. A rank with fewer micro batches runs one row again and
drops the result. What must not change: how many passes a rank runs follows from the manifest and
the world size alone, and the result is reduced after the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bert_ds.batch import Batch
from bert_ds.config.recipe import BatchLayout, RunConfig
from bert_ds.data.collate import lay_out
from bert_ds.data.masks import DynamicMasks
from bert_ds.data.reader import BlockReader
from bert_ds.distributed.communicator import Communicator
from bert_ds.engine import TrainEngine
from bert_ds.errors import DataError
from bert_ds.model.families import PretrainingModel
from bert_ds.objectives import PRETRAINING, Sums
from bert_ds.train import setup
from data_prep.contract.format import Block, select_rows


@dataclass(frozen=True)
class HeldOutResult:
    """How well the model does on rows that it was not trained on."""

    sequence_length: int
    """Tokens of the dataset's longest rows."""
    sequences: int
    """Number of rows evaluated."""
    figures: dict[str, Any]
    """Answers, losses in nats, accuracies and trivial guesses, as `ObjectiveSet.held_out`."""

    def as_text(self) -> str:
        """Return the few figures that a person looks for."""
        return PRETRAINING.held_out_text(self.figures)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        lengths = {"sequence_length": self.sequence_length, "sequences": self.sequences}
        return {**lengths, **self.figures}


@dataclass(frozen=True)
class HeldOutRows:
    """The held-out rows of a dataset as the micro batches of several ranks."""

    reader: BlockReader
    """Reads the `valid` split."""
    masks: DynamicMasks | None
    """Masks rows that are not masked yet, the same way in every evaluation."""
    micro_batch_size: int
    """Rows per forward pass."""
    max_sequences: int | None
    """Rows to use from the start of the split; None for all of them."""
    layout: BatchLayout
    """How the rows of a micro batch lie."""

    @property
    def num_rows(self) -> int:
        """Number of rows that are used."""
        held = sum(self.reader.block_counts)
        return min(held, self.max_sequences or held)

    def num_batches(self) -> int:
        """Return how many micro batches all ranks have together."""
        number = begin = 0
        for count in self.reader.block_counts:
            used = max(0, min(count, self.num_rows - begin))
            number += -(-used // self.micro_batch_size)
            begin += count
        return number

    def batches(self, rank: int, world_size: int) -> Iterator[tuple[int, Batch]]:
        """Yield the number of rows and the tensors of each micro batch of a rank.

        A micro batch never crosses a block, so a rank reads only the blocks that it has rows of.
        """
        number = begin = 0
        for block_number, count in enumerate(self.reader.block_counts):
            used = max(0, min(count, self.num_rows - begin))
            starts = range(0, used, self.micro_batch_size)
            mine = [s for index, s in enumerate(starts, number) if index % world_size == rank]
            block = self.reader.read(block_number) if mine else None
            for start in mine:
                assert block is not None, (
                    "the block is read where it has a micro batch of this rank"
                )
                rows = np.arange(start, min(start + self.micro_batch_size, used), dtype=np.int64)
                yield len(rows), lay_out(self._masked(block, rows, begin), self.layout)
            number += len(starts)
            begin += count

    def one_row(self) -> Batch:
        """Return a micro batch of the first row, for a forward pass whose result is dropped."""
        return lay_out(select_rows(self.reader.read(0), np.arange(1)), self.layout)

    def _masked(self, block: Block, rows: Any, begin: int) -> Block:
        chosen = select_rows(block, rows)
        if self.masks is None:
            return chosen
        return self.masks.applied_to(chosen, np.zeros_like(rows), begin + rows)


@torch.no_grad()
def evaluate_held_out(
    config: RunConfig,
    data: setup.PhaseData,
    model: PretrainingModel,
    comm: Communicator,
    engine: TrainEngine | None = None,
    progress: Callable[[int], None] = lambda number: None,
) -> HeldOutResult:
    """Evaluate on the held-out rows of a dataset, on all ranks together, without dropout.

    Args:
        config: settings of the run.
        data: the dataset.
        model: the model to evaluate.
        comm: the ranks, which share the micro batches.
        engine: the engine that trains the model; None outside training.
        progress: called with the number of each batch before it is computed.

    Raises:
        DataError: the dataset holds no held-out rows.
    """
    reader, masks = setup.open_held_out(config, data)
    settings = config.evaluation
    rows = HeldOutRows(
        reader, masks, settings.micro_batch_size, settings.max_sequences,
        config.execution.batch_layout,
    )  # fmt: skip
    with ExitStack() as stack:
        stack.callback(reader.close)
        if rows.num_rows == 0:
            raise DataError(
                "the dataset has no held-out rows; prepare it with --valid-fraction above 0"
            )
        was_training = model.training
        model.eval()
        forward = stack.enter_context(engine.evaluating()) if engine else model
        world = comm.world
        num_computed, totals = _sums_over(
            rows, forward, model.vocab_size, (world.rank, world.world_size), comm.device, progress
        )
        if engine is not None and engine.is_partitioned:
            # A forward pass under ZeRO 3 is collective: a rank with fewer batches repeats a row.
            most = -(-rows.num_batches() // world.world_size)
            again = rows.one_row().to(comm.device)
            for number in range(num_computed, most):
                progress(number)
                forward(again)
        model.train(was_training)
    return _result(comm.all_reduce(totals).tolist(), data, model.vocab_size)


def _sums_over(
    rows: HeldOutRows,
    forward: Callable[[Batch], Sums],
    vocab_size: int,
    share: tuple[int, int],
    device: torch.device,
    progress: Callable[[int], None],
) -> tuple[int, torch.Tensor]:
    """Compute this rank's share of the held-out rows.

    Args:
        rows: the held-out rows.
        forward: computes a batch.
        vocab_size: pieces in the vocabulary.
        share: (rank, world size).
        device: where the model is.
        progress: called with the number of each batch before it is computed.

    Returns:
        The number of this rank's batches, and its totals as `_result` reads them, float64 on the
        device: the sums of the terms, their numbers of answers, the number of rows, and for each
        trivial guess how often each class was the answer.
    """
    terms = PRETRAINING.terms
    guesses = [term.guess for term in terms if term.guess is not None]
    counts = torch.zeros(3 * len(terms) + 1, dtype=torch.float64, device=device)
    histograms = torch.zeros(len(guesses), vocab_size, dtype=torch.float64, device=device)
    number = 0
    for num_rows, batch in rows.batches(*share):
        progress(number)
        number += 1
        num_answers = PRETRAINING.count([batch])
        moved = batch.to(device)
        sizes = [*(num_answers[term.name] for term in terms), num_rows]
        counts += torch.cat(
            [
                PRETRAINING.flatten(forward(moved)),
                torch.tensor(sizes, dtype=torch.float64, device=device),
            ]
        )
        for histogram, guess in zip(histograms, guesses, strict=True):
            histogram += guess.histogram(moved, vocab_size)
    return number, torch.cat([counts, histograms.flatten()])


def _result(totals: list[float], data: setup.PhaseData, vocab_size: int) -> HeldOutResult:
    """Return the result that follows from the totals of all ranks."""
    terms = PRETRAINING.terms
    sums, rest = totals[: 2 * len(terms)], totals[2 * len(terms) :]
    num_answers = {term.name: int(rest[place]) for place, term in enumerate(terms)}
    sequences, histograms = int(rest[len(terms)]), rest[len(terms) + 1 :]
    guessed = [term.name for term in terms if term.guess is not None]
    commonest = {
        name: max(histograms[place * vocab_size : (place + 1) * vocab_size])
        for place, name in enumerate(guessed)
    }
    figures = PRETRAINING.held_out(sums, num_answers, commonest)
    return HeldOutResult(data.manifest.sequence_length, sequences, figures)
