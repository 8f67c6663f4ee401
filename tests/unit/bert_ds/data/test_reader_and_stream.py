"""Reading blocks by pread, broken shards, and the updates of each rank."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from bert_ds.config.batch import plan_batch
from bert_ds.data import reader as reader_module
from bert_ds.data.reader import BlockReader, open_dataset
from bert_ds.data.rows import StreamSpec
from bert_ds.data.stream import Prefetcher, RankUpdate, TrainStream
from bert_ds.errors import DataError
from bert_ds.objectives import PRETRAINING
from tests.support.datasets import make_dataset, random_block


def make_stream(folder: Path, rank: int, world_size: int, micro: int, train: int) -> TrainStream:
    batch = plan_batch(train, micro, world_size, "p")
    return TrainStream(StreamSpec(folder, open_dataset(folder), 5, batch, rank))


def update_at(stream: TrainStream, position: int) -> RankUpdate:
    """The one update that begins at `position`."""
    updates = stream.updates(position)
    update = next(updates)
    updates.close()
    return update


def rows_of(update: RankUpdate) -> list[list[int]]:
    """Real tokens of each row, in order."""
    return [
        batch.input_ids[start:end].tolist()
        for batch in update.micro_batches
        for start, end in pairwise(batch.cu_seqlens.tolist())
    ]


def test_blocks_are_read_as_they_were_written(tmp_path: Path) -> None:
    manifest = make_dataset(tmp_path, num_train=50, rows_per_block=16, seed=3)
    written = random_block(50, 32, 64, 3)
    reader = BlockReader(tmp_path, manifest, "train")
    assert reader.block_counts == [16, 16, 16, 2]
    read = reader.window((0, 1, 2, 3)).rows
    np.testing.assert_array_equal(read.tokens, written.tokens)
    np.testing.assert_array_equal(read.masked_lm_ids, written.masked_lm_ids)
    np.testing.assert_array_equal(read.pair_label, written.pair_label)
    reader.close()
    assert len(reader.read(3)) == 2  # opened again


@pytest.mark.parametrize(("world_size", "micro"), [(1, 12), (1, 4), (2, 6), (2, 2), (4, 3), (3, 1)])
def test_an_update_is_the_same_rows_however_it_is_split(
    tmp_path: Path, world_size: int, micro: int
) -> None:
    make_dataset(tmp_path, num_train=100)
    whole = make_stream(tmp_path, 0, 1, 12, 12)
    for position in (0, 12, 96, 204):  # 96 crosses an epoch's end
        parts = [
            update_at(make_stream(tmp_path, rank, world_size, micro, 12), position)
            for rank in range(world_size)
        ]
        expected = update_at(whole, position)
        assert [row for part in parts for row in rows_of(part)] == rows_of(expected)
        counts = [PRETRAINING.count(part.micro_batches) for part in parts]
        whole_counts = PRETRAINING.count(expected.micro_batches)
        assert {name: sum(c[name] for c in counts) for name in whole_counts} == whole_counts
        assert whole_counts["nsp"] == 12
        assert sum(part.num_tokens for part in parts) == expected.num_tokens
        assert [p for part in parts for p in part.micro_positions] == list(
            range(position, position + 12, micro)
        )


def test_the_layout_changes_how_rows_lie_and_nothing_else(tmp_path: Path) -> None:
    make_dataset(tmp_path)
    spec = make_stream(tmp_path, 0, 1, 4, 8)._spec
    unpadded = update_at(TrainStream(spec, layout="unpadded"), 16)
    padded = update_at(TrainStream(spec, layout="padded"), 16)
    rows = [
        row[mask].tolist()
        for batch in padded.micro_batches
        for row, mask in zip(batch.input_ids, batch.attention_mask, strict=True)
    ]
    assert rows == rows_of(unpadded)
    for one, other in zip(unpadded.micro_batches, padded.micro_batches, strict=True):
        assert one.masked_lm_ids.tolist() == other.masked_lm_ids.tolist()
        found = one.input_ids[one.masked_lm_positions]
        assert torch.equal(found, other.input_ids.flatten()[other.masked_lm_positions])


@pytest.mark.parametrize("world_size", [1, 2])
def test_packed_updates_hold_the_same_rows_and_say_so_to_ranks_with_fewer(
    tmp_path: Path, world_size: int
) -> None:
    make_dataset(tmp_path)
    for rank in range(world_size):
        spec = make_stream(tmp_path, rank, world_size, 2, 24)._spec
        for position in (0, 24, 192):
            plain = update_at(TrainStream(spec), position)
            packed = update_at(TrainStream(spec, layout="packed"), position)
            assert len(packed.micro_batches) < len(plain.micro_batches)
            found = [row for row in rows_of(packed) if any(row)]
            assert sorted(found) == sorted(rows_of(plain))
            assert packed.micro_positions == plain.micro_positions
            for name in ("num_tokens", "position"):
                assert getattr(packed, name) == getattr(plain, name)
            assert PRETRAINING.count(packed.micro_batches) == PRETRAINING.count(plain.micro_batches)
            assert (packed.empty is None) == (world_size == 1)
            assert plain.empty is None


def test_the_stream_goes_on_from_any_position(tmp_path: Path) -> None:
    make_dataset(tmp_path)
    stream = make_stream(tmp_path, 0, 1, 4, 8)
    from_start = stream.updates(0)
    for _ in range(5):
        next(from_start)
    resumed = make_stream(tmp_path, 0, 1, 4, 8).updates(40)
    for _ in range(30):
        a, b = next(from_start), next(resumed)
        assert a.position == b.position
        assert rows_of(a) == rows_of(b)


def test_prefetching_changes_nothing_and_stops_when_it_is_closed(tmp_path: Path) -> None:
    make_dataset(tmp_path)
    plain = make_stream(tmp_path, 0, 1, 4, 8).updates(0)
    ahead = Prefetcher(make_stream(tmp_path, 0, 1, 4, 8).updates(0))
    for _ in range(6):
        a, b = next(plain), next(ahead)
        assert all(
            torch.equal(torch.as_tensor(x), torch.as_tensor(y))
            for m, n in zip(a.micro_batches, b.micro_batches, strict=True)
            for x, y in zip(m, n, strict=True)
        )
    ahead.close()
    assert not ahead._thread.is_alive()


def test_an_error_of_the_reader_comes_out_of_the_prefetcher(tmp_path: Path) -> None:
    make_dataset(tmp_path)
    stream = make_stream(tmp_path, 0, 1, 4, 8)
    for shard in tmp_path.glob("train-*.tar"):
        shard.write_bytes(shard.read_bytes()[:1000])
    ahead = Prefetcher(stream.updates(0))
    with pytest.raises(DataError, match=r"train-00000-\d+\.tar at byte \d+"):
        for _ in range(50):
            next(ahead)
    ahead.close()


def test_a_missing_or_truncated_shard_is_named_when_the_dataset_is_opened(tmp_path: Path) -> None:
    make_dataset(tmp_path)
    shard = tmp_path / "train-00000-001.tar"
    content = shard.read_bytes()
    shard.write_bytes(content[:-512])
    with pytest.raises(DataError, match=r"train-00000-001\.tar has \d+ bytes, its manifest says"):
        open_dataset(tmp_path)
    shard.unlink()
    with pytest.raises(DataError, match=r"train-00000-001\.tar is missing"):
        open_dataset(tmp_path)


def test_a_changed_byte_inside_a_block_is_found_when_it_is_read(tmp_path: Path) -> None:
    manifest = make_dataset(tmp_path)
    shard = manifest.shards("train")[0]
    path = tmp_path / shard.file
    content = bytearray(path.read_bytes())
    content[shard.blocks[1].offset + shard.blocks[1].size // 2] ^= 1
    path.write_bytes(content)
    reader = BlockReader(tmp_path, manifest, "train")
    reader.read(0)
    with pytest.raises(DataError, match=shard.file):
        reader.read(1)


def test_more_shards_than_files_may_be_open_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = make_dataset(tmp_path, num_train=200)
    monkeypatch.setattr(reader_module, "_NUM_FILES_KEPT", 2)
    reader = BlockReader(tmp_path, manifest, "train")
    assert len(manifest.shards("train")) == 4
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        for block, count in enumerate(reader.block_counts):
            assert len(reader.read(block)) == count
            assert len(os.listdir("/proc/self/fd")) <= before + 2
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_rows_of_one_segment_have_no_pair_label(tmp_path: Path) -> None:
    make_dataset(tmp_path, is_paired=False)
    update = update_at(make_stream(tmp_path, 0, 1, 4, 8), 0)
    assert PRETRAINING.count(update.micro_batches)["nsp"] == 0
    for batch in update.micro_batches:
        assert batch.next_sentence_label.tolist() == [-100] * 4
        assert not batch.token_type_ids.any()


def test_no_dataset_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        open_dataset(tmp_path / "nowhere")
