"""Held-out evaluation: exact counts over all ranks, no row twice, none left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from bert_ds.batch import NO_PAIR_LABEL, Batch
from bert_ds.config.recipe import BatchLayout
from bert_ds.data.collate import lay_out
from bert_ds.data.masks import DynamicMasks
from bert_ds.data.reader import BlockReader
from bert_ds.errors import DataError
from bert_ds.model import BertForPreTraining, PretrainingOutput
from data_prep.contract.format import Block, select_rows
from data_prep.contract.manifest import Manifest


@dataclass(frozen=True)
class HeldOutResult:
    """What the model makes of rows that it was not trained on.

    Attributes:
        sequence_length: of the rows.
        sequences: rows evaluated.
        predictions: masked positions evaluated.
        mlm_loss: nats a masked position.
        mlm_accuracy: share of masked positions whose best-scored piece is the original.
        nsp_accuracy: share of rows with the right next-sentence label; None where rows have none.
        unigram_accuracy: the accuracy of always guessing the commonest masked piece.
    """

    sequence_length: int
    sequences: int
    predictions: int
    mlm_loss: float
    mlm_accuracy: float
    nsp_accuracy: float | None
    unigram_accuracy: float

    def as_text(self) -> str:
        """The few numbers a person looks for."""
        text = f"mlm_loss {self.mlm_loss:.3f}  mlm_acc {self.mlm_accuracy:.4f}"
        return text if self.nsp_accuracy is None else f"{text}  nsp_acc {self.nsp_accuracy:.4f}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@torch.no_grad()
def evaluate(
    model: BertForPreTraining,
    reader: BlockReader,
    manifest: Manifest,
    masks: DynamicMasks | None = None,
    *,
    micro_batch_size: int,
    max_sequences: int | None,
    rank: int,
    world_size: int,
    device: torch.device,
    sum_over_ranks: Callable[[torch.Tensor], torch.Tensor],
    layout: BatchLayout = "unpadded",
    forward: Callable[[Batch], PretrainingOutput] | None = None,
    is_partitioned: bool = False,
    progress: Callable[[int], None] = lambda number: None,
) -> HeldOutResult:
    """Evaluate on the held-out split; each rank takes every world_size-th micro batch.

    Args:
        model: put into evaluation mode for the time, without dropout.
        reader: of the `valid` split.
        manifest: of the same dataset.
        masks: what masks the rows where they are not masked yet; the same at every call.
        micro_batch_size: rows per forward.
        max_sequences: rows to use from the start of the split, or None for all.
        rank: of this process.
        world_size: processes that share the work.
        device: where the model is.
        sum_over_ranks: in-place sum of a device tensor over all ranks.
        layout: how the rows of a micro batch lie.
        forward: what computes a batch, where it is not the model itself.
        is_partitioned: whether all ranks must call it as often; ranks with fewer micro batches
            then compute some again, and count them once.
        progress: told the number of each batch before it is computed.

    Raises:
        DataError: the split holds no rows.
    """
    num_rows = sum(reader.block_counts)
    if num_rows == 0:
        raise DataError(
            "the dataset has no held-out rows; prepare it with --valid-fraction above 0"
        )
    num_rows = min(num_rows, max_sequences or num_rows)
    was_training = model.training
    model.eval()
    share = _micro_batches(reader, masks, num_rows, micro_batch_size, rank, world_size)
    batches = _told(progress, (lay_out(rows, layout) for rows in share))
    compute = forward or model
    num_computed, sums = _sums_over(batches, compute, model.config.vocab_size, device)
    if is_partitioned:
        most = -(-_num_micro_batches(reader, num_rows, micro_batch_size) // world_size)
        again = lay_out(select_rows(reader.read(0), np.arange(1)), layout).to(device)
        for number in range(num_computed, most):
            progress(number)
            compute(again)
    model.train(was_training)
    totals = sum_over_ranks(sums).tolist()
    mlm_loss, _, mlm_correct, nsp_correct, predictions, sequences, pair_labels = totals[:7]
    return HeldOutResult(
        sequence_length=manifest.sequence_length,
        sequences=int(sequences),
        predictions=int(predictions),
        mlm_loss=mlm_loss / predictions,
        mlm_accuracy=mlm_correct / predictions,
        nsp_accuracy=nsp_correct / pair_labels if pair_labels else None,
        unigram_accuracy=max(totals[7:]) / predictions,
    )


def _told(progress: Callable[[int], None], batches: Iterable[Batch]) -> Iterator[Batch]:
    for number, batch in enumerate(batches):
        progress(number)
        yield batch


def _sums_over(
    batches: Iterable[Batch],
    compute: Callable[[Batch], PretrainingOutput],
    vocab_size: int,
    device: torch.device,
) -> tuple[int, torch.Tensor]:
    """How many batches there were, and float64 [7 + V] on the device: the four sums of
    `PretrainingOutput`; masked positions, rows and pair labels; how often each piece was masked."""
    counts = torch.zeros(7, dtype=torch.float64, device=device)
    originals = torch.zeros(vocab_size, dtype=torch.float64, device=device)
    number = 0
    for batch in batches:
        number += 1
        labels = batch.next_sentence_label
        sizes = [len(batch.masked_lm_ids), len(labels), int((labels != NO_PAIR_LABEL).sum())]
        moved = batch.to(device)
        output = compute(moved)
        counts[:4] += torch.stack([value.double() for value in output])
        counts[4:] += torch.tensor(sizes, dtype=torch.float64, device=device)
        originals += torch.bincount(moved.masked_lm_ids, minlength=vocab_size)
    return number, torch.cat([counts, originals])


def _num_micro_batches(reader: BlockReader, num_rows: int, micro_batch_size: int) -> int:
    """How many `_micro_batches` gives all ranks together."""
    number = begin = 0
    for count in reader.block_counts:
        used = max(0, min(count, num_rows - begin))
        number += -(-used // micro_batch_size)
        begin += count
    return number


def _micro_batches(
    reader: BlockReader,
    masks: DynamicMasks | None,
    num_rows: int,
    micro_batch_size: int,
    rank: int,
    world_size: int,
) -> Iterator[Block]:
    """This rank's micro batches of the first `num_rows` rows, in order, never across blocks."""
    number = begin = 0
    for block_number, count in enumerate(reader.block_counts):
        if begin >= num_rows:
            return
        used = min(count, num_rows - begin)
        starts = range(0, used, micro_batch_size)
        mine = [s for index, s in enumerate(starts, number) if index % world_size == rank]
        block = reader.read(block_number) if mine else None
        for start in mine:
            assert block is not None, "it is read where there is a micro batch in it"
            rows = np.arange(start, min(start + micro_batch_size, used), dtype=np.int64)
            chosen = select_rows(block, rows)
            if masks is not None:
                chosen = masks.applied_to(chosen, np.zeros_like(rows), begin + rows)
            yield chosen
        number += len(starts)
        begin += count
