"""What verify finds in a damaged dataset folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.contract.errors import DataError
from data_prep.contract.format import block_checksum, encode_block
from data_prep.contract.manifest import load_manifest, to_json
from data_prep.inspect.dataset import read_split
from data_prep.inspect.verify import BlockChecker, verify_folder


def test_a_changed_byte_anywhere_in_a_shard_names_it(folder: Path) -> None:
    path = folder / "train-00000-001.tar"
    whole = path.read_bytes()
    for offset in (0, 130, 600, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        with pytest.raises(DataError, match=r"1 faults(.|\n)*train-00000-001\.tar: changed"):
            verify_folder(folder)
    path.write_bytes(whole)
    verify_folder(folder)


def test_every_fault_is_named(folder: Path) -> None:
    (folder / "train-00000-000.tar").write_bytes(b"")
    (folder / "train-00000-001.tar").unlink()
    (folder / "train-99999-000.tar").write_bytes(b"")
    (folder / "vocab.txt").write_text("other", encoding="utf-8")
    with pytest.raises(DataError) as got:
        verify_folder(folder)
    message = str(got.value)
    assert "train-00000-000.tar: 0 bytes, the manifest says" in message
    assert "train-00000-001.tar: missing" in message
    assert "train-99999-000.tar: not in the manifest" in message
    assert "vocab.txt: missing or changed" in message
    assert "4 faults" in message


def rewrite(folder: Path, change: Callable[[dict[str, object]], None]) -> None:
    path = folder / "manifest.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def test_a_changed_manifest_is_found(folder: Path) -> None:
    rewrite(folder, lambda content: content["parameters"].update(seed=9))
    with pytest.raises(DataError, match="fingerprint"):
        verify_folder(folder)


def refingerprinted(folder: Path) -> None:
    manifest = replace(load_manifest(folder), fingerprint="").with_fingerprint()
    (folder / "manifest.json").write_text(json.dumps(to_json(manifest)), encoding="utf-8")


def test_totals_that_are_not_those_of_the_rows_are_found(folder: Path) -> None:
    rewrite(folder, lambda content: content["splits"]["valid"]["totals"].update(label_1=10**6))
    refingerprinted(folder)
    with pytest.raises(DataError, match="the totals of valid are not those of its rows"):
        verify_folder(folder)


def test_a_block_table_that_does_not_fit_the_shard_is_found(folder: Path) -> None:
    def shift(content: dict[str, object]) -> None:
        content["splits"]["train"]["shards"][0]["blocks"][1][0] += 512

    rewrite(folder, shift)
    refingerprinted(folder)
    with pytest.raises(DataError, match=r"train-00000-000\.tar block 1"):
        verify_folder(folder)


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("length", None, "length"),
        ("segment_a_length", 2, "segment_a_length"),
        ("num_predictions", 99, "num_predictions"),
        ("tokens", 3, r"no \[CLS\] first"),
        ("tokens", 60_000, r"no \[CLS\] first|no piece"),
        ("masked_lm_positions", 0, "outside the segments"),
        ("masked_lm_ids", 0, "no piece of text"),
        ("pair_label", 2, "next_sentence_label"),
    ],
)
def test_rows_that_break_the_contract_are_named(
    folder: Path, field: str, value: int | None, rule: str
) -> None:
    manifest = load_manifest(folder)
    where, block = next(read_split(folder, manifest, "train"))
    array = getattr(block, field).copy()
    array[0] = 4 if value is None else min(value, np.iinfo(array.dtype).max)
    with pytest.raises(DataError, match=rf"block 0 row 0: .*{rule}"):
        BlockChecker(folder, manifest).check(replace(block, **{field: array}), where)


def test_dtypes_and_label_name_are_checked(folder: Path) -> None:
    manifest = load_manifest(folder)
    where, block = next(read_split(folder, manifest, "train"))
    checker = BlockChecker(folder, manifest)
    with pytest.raises(DataError, match="field length is not uint16"):
        checker.check(replace(block, length=block.length.astype(np.uint32)), where)
    with pytest.raises(DataError, match="the label is sentence_order_label"):
        checker.check(replace(block, pair_label_name="sentence_order_label"), where)


def test_a_shard_made_by_hand_with_wrong_rows_is_named(folder: Path) -> None:
    # A checksum that fits is not enough: the rows themselves are looked at.
    manifest = load_manifest(folder)
    shard = manifest.shards("train")[0]
    entry = shard.blocks[0]
    path = folder / shard.file
    data = bytearray(path.read_bytes())
    block = next(read_split(folder, manifest, "train")).block
    label = block.pair_label.copy()
    label[3] = 7
    payload = encode_block(replace(block, pair_label=label))
    data[entry.offset : entry.offset + entry.size] = payload
    path.write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()

    def fit(content: dict[str, Any]) -> None:
        entry_of_shard = content["splits"]["train"]["shards"][0]
        entry_of_shard["sha256"] = digest
        entry_of_shard["blocks"][0][3] = block_checksum(payload)

    rewrite(folder, fit)
    refingerprinted(folder)
    with pytest.raises(DataError, match=r"train-00000-000\.tar block 0 row 3: next_sentence_label"):
        verify_folder(folder)
