"""Held-out evaluation: exact counts over all ranks, no row twice, none left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from bert_ds.batch import PretrainingBatch
from bert_ds.data.collate import collate
from bert_ds.data.reader import BlockReader
from bert_ds.errors import DataError
from bert_ds.model import BertForPreTraining
from data_prep.format import select_rows
from data_prep.manifest import Manifest


@dataclass(frozen=True)
class HeldOutResult:
    """What the model makes of rows that it was not trained on.

    Attributes:
        sequence_length: of the rows.
        sequences: rows evaluated.
        predictions: masked positions evaluated.
        mlm_loss: nats a masked position.
        mlm_accuracy: share of masked positions whose best-scored piece is the original.
        nsp_accuracy: share of rows with the right next-sentence label.
        unigram_accuracy: the accuracy of always guessing the commonest masked piece.
    """

    sequence_length: int
    sequences: int
    predictions: int
    mlm_loss: float
    mlm_accuracy: float
    nsp_accuracy: float
    unigram_accuracy: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@torch.no_grad()
def evaluate(
    model: BertForPreTraining,
    reader: BlockReader,
    manifest: Manifest,
    *,
    micro_batch_size: int,
    max_sequences: int | None,
    rank: int,
    world_size: int,
    device: torch.device,
    sum_over_ranks: Callable[[torch.Tensor], torch.Tensor],
) -> HeldOutResult:
    """Evaluate on the held-out split; each rank takes every world_size-th micro batch.

    Args:
        model: put into evaluation mode for the time, without dropout.
        reader: of the `valid` split.
        manifest: of the same dataset.
        micro_batch_size: rows per forward.
        max_sequences: rows to use from the start of the split, or None for all.
        rank: of this process.
        world_size: processes that share the work.
        device: where the model is.
        sum_over_ranks: in-place sum of a device tensor over all ranks.

    Raises:
        DataError: the split holds no rows.
    """
    num_rows = sum(reader.block_counts)
    if num_rows == 0:
        raise DataError(
            "the dataset has no held-out rows; prepare it with --valid-fraction above 0"
        )
    num_rows = min(num_rows, max_sequences or num_rows)
    num_pieces = model.config.vocab_size
    counts = torch.zeros(6, dtype=torch.float64, device=device)
    originals = torch.zeros(num_pieces, dtype=torch.float64, device=device)
    was_training = model.training
    model.eval()
    for number, batch in enumerate(_micro_batches(reader, num_rows, micro_batch_size)):
        if number % world_size != rank:
            continue
        batch = batch.to(device)
        output = model(batch)
        sizes = [len(batch.masked_lm_ids), len(batch.next_sentence_label)]
        counts[:4] += torch.stack([value.double() for value in output])
        counts[4:] += torch.tensor(sizes, dtype=torch.float64, device=device)
        originals += torch.bincount(batch.masked_lm_ids, minlength=num_pieces)
    model.train(was_training)
    totals = sum_over_ranks(torch.cat([counts, originals])).tolist()
    mlm_loss, _, mlm_correct, nsp_correct, predictions, sequences = totals[:6]
    return HeldOutResult(
        sequence_length=manifest.sequence_length,
        sequences=int(sequences),
        predictions=int(predictions),
        mlm_loss=mlm_loss / predictions,
        mlm_accuracy=mlm_correct / predictions,
        nsp_accuracy=nsp_correct / sequences,
        unigram_accuracy=max(totals[6:]) / predictions,
    )


def _micro_batches(
    reader: BlockReader, num_rows: int, micro_batch_size: int
) -> Iterator[PretrainingBatch]:
    """The first `num_rows` rows in their order, never across blocks."""
    for block_number, count in enumerate(reader.block_counts):
        if num_rows <= 0:
            return
        block = reader.read(block_number)
        used = min(count, num_rows)
        num_rows -= used
        for start in range(0, used, micro_batch_size):
            rows = np.arange(start, min(start + micro_batch_size, used), dtype=np.int64)
            yield collate(select_rows(block, rows))
