"""Masks made while reading: whose they are, and that they never depend on how rows are split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bert_ds.config.batch import BatchPlan
from bert_ds.data.masks import held_out_masks, is_left_to_the_reader, training_masks
from bert_ds.data.order import RowOrder
from bert_ds.data.reader import BlockReader, open_dataset
from bert_ds.data.rows import RowStream, StreamSpec
from bert_ds.errors import DataError
from data_prep.contract.format import Block
from data_prep.contract.masking import MaskingKind
from tests.support.datasets import MASK, make_dataset

ROWS = 200


@pytest.fixture(scope="module")
def unmasked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unmasked")
    make_dataset(folder, num_train=ROWS, is_masked=False)
    return folder


def read(
    folder: Path,
    position: int,
    *,
    rank: int = 0,
    world_size: int = 1,
    micro: int = 20,
    seed: int = 5,
    kind: MaskingKind = "token",
) -> Block:
    """One rank's rows of the update of 20 rows at `position`."""
    batch = BatchPlan(20, micro, 20 // micro // world_size, world_size)
    spec = StreamSpec(folder, open_dataset(folder), seed, batch, rank, kind)
    stream = RowStream(spec)
    rows = stream.update(position).rows
    stream.close()
    return rows


def rows_of(block: Block) -> list[tuple[list[int], list[int], list[int]]]:
    """(tokens, masked positions, original pieces) of each row."""
    tokens = np.split(block.tokens, np.cumsum(block.length)[:-1])
    ends = np.cumsum(block.num_predictions)[:-1]
    positions = np.split(block.masked_lm_positions, ends)
    ids = np.split(block.masked_lm_ids, ends)
    return [
        (t.tolist(), p.tolist(), i.tolist()) for t, p, i in zip(tokens, positions, ids, strict=True)
    ]


def restored(tokens: list[int], positions: list[int], ids: list[int]) -> list[int]:
    """A row before it was masked."""
    row = list(tokens)
    for position, piece in zip(positions, ids, strict=True):
        row[position] = piece
    return row


def by_dataset_row(folder: Path, epoch: int, seed: int = 5) -> dict[int, list[int]]:
    """Masked positions in an epoch by the row's number in the dataset."""
    found: dict[int, list[int]] = {}
    order = RowOrder(BlockReader(folder, open_dataset(folder), "train").block_counts, seed)
    for position in range(epoch * ROWS, (epoch + 1) * ROWS, 20):
        numbers = np.concatenate(
            [order.dataset_rows(p) for p in order.slices(position, position + 20)]
        )
        for number, (_, places, _) in zip(
            numbers, rows_of(read(folder, position, seed=seed)), strict=True
        ):
            found[int(number)] = places
    return found


def test_rows_are_masked_as_often_as_the_rules_say_and_hold_their_pieces(unmasked: Path) -> None:
    assert is_left_to_the_reader(open_dataset(unmasked))
    plain = RowStream(StreamSpec(unmasked, open_dataset(unmasked), 5, BatchPlan(20, 20, 1, 1), 0))
    whole = rows_of(plain.update(0).rows)
    block = read(unmasked, 0)
    assert block.num_predictions.dtype == np.uint8
    assert block.masked_lm_positions.dtype == np.uint8
    for (tokens, _, _), (masked, positions, ids) in zip(whole, rows_of(block), strict=True):
        assert len(positions) == min(5, max(1, round(0.15 * len(tokens))))
        assert restored(masked, positions, ids) == tokens
    assert (block.tokens == MASK).sum() > 0.5 * len(block.masked_lm_ids)


@pytest.mark.parametrize(("world_size", "micro"), [(1, 5), (2, 10), (2, 2), (4, 5), (5, 1)])
def test_masks_do_not_depend_on_how_an_update_is_split(
    unmasked: Path, world_size: int, micro: int
) -> None:
    for position in (0, 60, 180, 200, 580):
        parts = [
            row
            for rank in range(world_size)
            for row in rows_of(
                read(unmasked, position, rank=rank, world_size=world_size, micro=micro)
            )
        ]
        assert parts == rows_of(read(unmasked, position))


def test_an_epoch_has_other_masks_than_the_one_before_and_a_seed_than_another(
    unmasked: Path,
) -> None:
    first, second = by_dataset_row(unmasked, 0), by_dataset_row(unmasked, 1)
    other = by_dataset_row(unmasked, 0, seed=6)
    assert first.keys() == second.keys() == other.keys() == set(range(ROWS))
    for found in (second, other):
        assert sum(found[row] == first[row] for row in range(ROWS)) < 0.2 * ROWS
    assert by_dataset_row(unmasked, 1) == second


def test_the_masks_of_a_row_are_a_function_of_dataset_seed_epoch_and_row(unmasked: Path) -> None:
    manifest = open_dataset(unmasked)
    masks = training_masks(unmasked, manifest, "token", 5)
    reader = BlockReader(unmasked, manifest, "train")
    found = by_dataset_row(unmasked, 2)
    begin = 0
    for number, count in enumerate(reader.block_counts):
        rows = np.arange(count)
        block = masks.applied_to(reader.read(number), np.full(count, 2), begin + rows)
        assert [p for _, p, _ in rows_of(block)] == [found[int(begin + row)] for row in rows]
        begin += count
    reader.close()


def test_whole_words_are_masked_where_they_are_asked_for(tmp_path: Path) -> None:
    make_dataset(tmp_path, is_masked=False)
    # words of two pieces: odd numbers begin one, even numbers continue it
    pieces = (tmp_path / "vocab.txt").read_text().split()
    pieces = [p if i < 5 or i % 2 else f"##{p}" for i, p in enumerate(pieces)]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")

    def words_cut(kind: MaskingKind) -> int:
        """Pieces that are masked without the other piece of their word."""
        cut = 0
        for tokens, positions, ids in rows_of(read(tmp_path, 0, kind=kind)):
            row = restored(tokens, positions, ids)
            for first in range(1, len(row) - 1):
                is_word = row[first] > 4 and row[first] % 2 and row[first + 1] == row[first] + 1
                if is_word and len(positions) > 1:  # a word does not fit where one is to be masked
                    cut += (first in positions) != (first + 1 in positions)
        return cut

    assert words_cut("whole_word") == 0
    assert words_cut("token") > 10


def test_held_out_masks_are_the_same_under_every_seed_and_not_those_of_training(
    unmasked: Path,
) -> None:
    manifest = open_dataset(unmasked)
    block = BlockReader(unmasked, manifest, "train").read(0)
    rows, epochs = np.arange(len(block)), np.zeros(len(block), np.int64)
    held_out = [held_out_masks(unmasked, manifest, "token") for _ in range(2)]
    a, b = (rows_of(masks.applied_to(block, epochs, rows)) for masks in held_out)
    assert a == b
    training = training_masks(unmasked, manifest, "token", 5).applied_to(block, epochs, rows)
    assert sum(x == y for x, y in zip(a, rows_of(training), strict=True)) < 0.3 * len(block)


def test_a_vocabulary_without_mask_is_refused(unmasked: Path, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nword\n")
    with pytest.raises(DataError, match=r"without \[MASK\]"):
        training_masks(tmp_path, open_dataset(unmasked), "token", 5)
