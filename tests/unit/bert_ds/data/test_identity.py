"""A shard in another's place is found before the first update, and during training."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bert_ds.config.batch import plan_batch
from bert_ds.data import identity
from bert_ds.data.cache import ShardCache
from bert_ds.data.reader import BlockReader, open_dataset
from bert_ds.data.rows import StreamSpec
from bert_ds.data.stream import TrainStream
from bert_ds.errors import DataError
from data_prep.contract.manifest import Manifest
from data_prep.inspect.verify import verify_folder
from tests.support.datasets import make_dataset

FIRST, LAST = "train-00000-000.tar", "train-00000-003.tar"


def make_equal_shards(folder: Path, seed: int = 0) -> Manifest:
    """Four train shards of the same size."""
    manifest = make_dataset(folder, num_train=256, min_length=32, seed=seed)
    assert len({shard.bytes for shard in manifest.shards("train")}) == 1
    assert len(manifest.shards("train")) == 4
    verify_folder(folder)
    return manifest


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    make_equal_shards(folder)
    return folder


def swap(folder: Path, one: str = FIRST, other: str = LAST) -> None:
    os.rename(folder / one, folder / "aside")
    os.rename(folder / other, folder / one)
    os.rename(folder / "aside", folder / other)


def test_two_shards_that_changed_places_are_named_when_the_dataset_is_opened(data: Path) -> None:
    open_dataset(data)
    swap(data)
    with pytest.raises(DataError) as got:
        open_dataset(data)
    assert f"shard {data / FIRST} holds {LAST} of the same dataset" in str(got.value)
    assert "its own name" in str(got.value)
    assert "bert-prep verify" in str(got.value)
    swap(data)
    open_dataset(data)


def test_a_shard_of_another_split_in_a_train_shards_place_is_named(tmp_path: Path) -> None:
    # Their members have the same names: the place in the dataset says nothing about the split.
    make_dataset(tmp_path, num_train=64, num_valid=64, min_length=32)
    shutil.copy(tmp_path / "valid-00000-000.tar", tmp_path / FIRST)
    with pytest.raises(DataError, match=r"train-00000-000\.tar holds valid-00000-000\.tar of the"):
        open_dataset(tmp_path)


def test_a_shard_of_another_seed_with_the_same_name_and_size_is_found(
    data: Path, tmp_path: Path
) -> None:
    other = make_equal_shards(tmp_path / "other", seed=7)
    assert other.shards("train")[1].bytes == (data / "train-00000-001.tar").stat().st_size
    shutil.copy(tmp_path / "other" / "train-00000-001.tar", data)
    with pytest.raises(
        DataError, match=r"train-00000-001\.tar does not hold the blocks of its manifest.*verify"
    ):
        open_dataset(data)


def test_a_file_of_the_right_size_that_is_no_shard_is_found(data: Path) -> None:
    (data / LAST).write_bytes(bytes((data / LAST).stat().st_size))
    with pytest.raises(DataError, match=LAST):
        open_dataset(data)


def test_processes_that_share_the_look_look_at_every_shard_once(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    true_look = identity._look

    def counted(path: Path, shard: identity.ShardEntry) -> tuple[int, int | None]:
        looked.append(path.name)
        return true_look(path, shard)

    monkeypatch.setattr(identity, "_look", counted)
    for part in range(3):
        open_dataset(data, part, 3)
    assert sorted(looked) == sorted(path.name for path in data.glob("*.tar"))


def test_shards_that_change_places_during_training_end_it_with_their_names(data: Path) -> None:
    batch = plan_batch(8, 8, 1, "p")
    stream = TrainStream(StreamSpec(data, open_dataset(data), 5, batch, 0))
    updates = stream.updates(0)
    next(updates)
    updates.close()  # as at an evaluation or the next phase: shards are opened again
    swap(data)
    swap(data, "train-00000-001.tar", "train-00000-002.tar")
    with pytest.raises(DataError, match=r"train-00000-00\d\.tar holds train-00000-00\d\.tar of"):
        list(zip(range(100), stream.updates(8), strict=False))


def test_a_later_block_of_another_shard_is_found_when_it_is_read(data: Path) -> None:
    manifest = open_dataset(data)
    shard, other = manifest.shards("train")[:2]
    block = shard.blocks[2]
    assert (block.offset, block.size) == (other.blocks[2].offset, other.blocks[2].size)
    with (data / shard.file).open("r+b") as file, (data / other.file).open("rb") as source:
        file.seek(block.offset)
        source.seek(block.offset)
        file.write(source.read(block.size))
    open_dataset(data)  # the first block is right: this is for the reader, and for verify
    reader = BlockReader(data, manifest, "train")
    reader.read(1)
    with pytest.raises(DataError, match=r"000\.tar at byte \d+: a whole block, but not the one of"):
        reader.read(2)


def test_a_wrong_copy_in_the_cache_is_made_again(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = open_dataset(data)
    cache = ShardCache(tmp_path / "cache", data, manifest)
    copies = [cache.path_of(shard) for shard in manifest.shards("train")]
    swap(copies[0].parent)
    for shard in manifest.shards("train"):
        copy = ShardCache(tmp_path / "cache", data, manifest).path_of(shard)
        assert copy.read_bytes() == (data / shard.file).read_bytes()
    assert caplog.text.count("is not the shard of this name; copied again") == 2


def test_a_wrong_shard_is_not_copied_into_the_cache(data: Path, tmp_path: Path) -> None:
    manifest = open_dataset(data)
    cache = ShardCache(tmp_path / "cache", data, manifest)
    swap(data)
    with pytest.raises(DataError, match=f"{data / FIRST} holds {LAST} of the same dataset"):
        cache.path_of(manifest.shards("train")[0])
    assert not list((tmp_path / "cache").rglob("*.tar*"))


def test_a_copy_that_is_swapped_while_it_is_read_is_found(data: Path, tmp_path: Path) -> None:
    manifest = open_dataset(data)
    cache = ShardCache(tmp_path / "cache", data, manifest)
    reader = BlockReader(data, manifest, "train", cache)
    copy = cache.path_of(manifest.shards("train")[0])
    other = cache.path_of(manifest.shards("train")[3])
    reader.read(0)
    copy.write_bytes(other.read_bytes())  # in place: the open file changes as well
    with pytest.raises(DataError, match=rf"{copy} holds {LAST} of the same dataset"):
        reader.read(1)
