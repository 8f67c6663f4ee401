"""Manifests: what is written comes back, and what cannot be read says why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from data_prep.contract.errors import DataError
from data_prep.contract.manifest import (
    BlockEntry,
    InputEntry,
    InputSummary,
    Manifest,
    ShardEntry,
    SplitSource,
    TextFacts,
    Totals,
    VocabularyEntry,
    dumps,
    load_manifest,
    to_json,
)
from data_prep.running.files import write_json


@pytest.fixture
def manifest() -> Manifest:
    shard = ShardEntry("train-00000-000.tar", 2048, "ab" * 32, 3, (BlockEntry(512, 700, 3, 99),))
    return Manifest(
        tool_version="1",
        sequence_length=8,
        max_predictions_per_seq=2,
        pair_label_name="next_sentence_label",
        vocabulary=VocabularyEntry("cd" * 32, 100, True, True),
        parameters={"seed": 3},
        inputs=InputSummary(1, 10, "ef" * 32, (InputEntry("a.txt", 1, 10, "01" * 32, 1.0),)),
        train_shards=(shard,),
        valid_shards=(),
        train_totals=Totals(3, 24, 3, 1, (0,) * 8 + (3,), 7, 2, 4, 1),
        valid_totals=Totals(length_histogram=(0,) * 9),
        train_source=SplitSource(2, 0, 1),
        text=TextFacts(5, 20, 1, 4, 2, 3, (("Khmer", 7), ("Latin", 2))),
    ).with_fingerprint()


def test_a_manifest_comes_back_as_it_was(manifest: Manifest, tmp_path: Path) -> None:
    write_json(tmp_path / "manifest.json", to_json(manifest))
    back = load_manifest(tmp_path)
    assert back == manifest
    assert back.shards("train")[0].blocks[0].offset == 512
    assert back.totals("valid").rows == 0


def test_the_fingerprint_follows_contents_and_not_names_of_inputs(manifest: Manifest) -> None:
    entry = replace(manifest.inputs.given[0], path="b.txt")
    renamed = replace(manifest, inputs=replace(manifest.inputs, given=(entry, entry)))
    changed = replace(manifest, inputs=replace(manifest.inputs, sha256="00" * 32))
    assert renamed.with_fingerprint().fingerprint == manifest.fingerprint
    assert changed.with_fingerprint().fingerprint != manifest.fingerprint
    reseeded = replace(manifest, parameters={"seed": 4})
    assert reseeded.with_fingerprint().fingerprint != manifest.fingerprint


def test_the_file_has_a_line_a_key_and_a_line_a_list_of_numbers() -> None:
    assert dumps({"a": {"b": [1, 2]}, "c": [[1], [2]], "d": {}}) == (
        '{\n  "a": {\n    "b": [1, 2]\n  },\n  "c": [\n    [1],\n    [2]\n  ],\n  "d": {}\n}'
    )


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        load_manifest(tmp_path / "nowhere")


def test_a_folder_without_manifest_names_the_dataset_folders_in_it(
    manifest: Manifest, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="did not end"):
        load_manifest(tmp_path)
    (tmp_path / "seq8").mkdir()
    write_json(tmp_path / "seq8" / "manifest.json", to_json(manifest))
    with pytest.raises(DataError, match=r"dataset folders in it are: seq8"):
        load_manifest(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"x"', "{}", "\x00"])
def test_a_file_that_is_no_manifest_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="not a manifest"):
        load_manifest(tmp_path)


def test_another_format_version_is_refused(manifest: Manifest, tmp_path: Path) -> None:
    write_json(tmp_path / "manifest.json", {**to_json(manifest), "format_version": 99})
    with pytest.raises(DataError, match="format_version is 99, this version reads 3"):
        load_manifest(tmp_path)


@pytest.mark.parametrize("field", ["sequence_length", "vocabulary", "splits", "fingerprint"])
def test_a_missing_field_is_named(manifest: Manifest, tmp_path: Path, field: str) -> None:
    content = to_json(manifest)
    del content[field]
    (tmp_path / "manifest.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(DataError, match=field):
        load_manifest(tmp_path)
