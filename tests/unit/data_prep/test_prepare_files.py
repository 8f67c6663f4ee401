"""Preparations of many small files: what a file costs, and that nothing else changes with them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep.contract.errors import DataError
from data_prep.contract.manifest import load_manifest
from data_prep.inspect.verify import verify_folder
from data_prep.pieces.vocabulary_job import VocabularyJob, make_vocabulary
from data_prep.pieces.vocabulary_training import VocabularyOptions
from data_prep.running.executor import ProcessExecutor
from data_prep.text import file_chunks, input_hashes, inputs
from data_prep.text.inputs import TextFormat
from tests.unit.data_prep.conftest import StoppingExecutor, text_of

Prepare = Callable[..., list[Path]]
FolderBytes = Callable[[Path], dict[str, bytes]]


def write_files(folder: Path, number: int) -> Path:
    """A folder of files of one document each, a hundred a folder."""
    documents = text_of(min(number, 300), most_sentences=4).split("\n\n")
    for index in range(number):
        path = folder / f"{index // 100:03d}" / f"{index:05d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{index}. {documents[index % len(documents)]}", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("many"), 2_000)


def digits_left_out(text: str) -> str:
    return "".join(character for character in text if not character.isdigit())


def test_a_manifest_does_not_grow_with_the_number_of_files(
    prepare: Prepare, tmp_path: Path, many: Path
) -> None:
    few = write_files(tmp_path / "few", 10)
    shared = {"one_document_per_file": True, "rows_per_block": 10_000}
    texts, records = [], []
    for name, folder in (("few", few), ("many", many)):
        link = tmp_path / "in"
        link.unlink(missing_ok=True)
        link.symlink_to(folder)
        (made,) = prepare(tmp_path / f"D-{name}", inputs=[link], **shared)
        manifest = verify_folder(made)
        assert manifest.documents == manifest.inputs.files == len(list(folder.rglob("*.txt")))
        inputs_part = json.loads((made / "manifest.json").read_text(encoding="utf-8"))["inputs"]
        texts.append(inputs_part)
        vocabulary = tmp_path / f"{name}.txt"
        options = VocabularyOptions(size=100)
        make_vocabulary(VocabularyJob([str(link)], TextFormat(True), options, vocabulary))
        records.append(vocabulary.with_suffix(".json").read_text(encoding="utf-8"))
    for few_part, many_part in (map(json.dumps, texts), records):
        assert abs(len(digits_left_out(few_part)) - len(digits_left_out(many_part))) < 150
        assert len(many_part) < 1_500


def test_a_file_is_looked_at_once_and_opened_twice(
    prepare: Prepare, tmp_path: Path, many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = dict.fromkeys(("open", "stat", "fstat", "realpath"), 0)

    def counting(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **how: object) -> object:
            calls[name] += 1
            return real(*arguments, **how)

        return counted

    for module in {file_chunks.os, input_hashes.os, inputs.os}:
        for name in ("open", "stat", "fstat"):
            monkeypatch.setattr(module, name, counting(name, getattr(module, name)))
    monkeypatch.setattr(os.path, "realpath", counting("realpath", os.path.realpath))
    prepare(tmp_path / "D", inputs=[many], one_document_per_file=True)
    assert calls["open"] < 2 * 2_000 + 500
    assert calls["stat"] < 2_000 + 500
    assert calls["fstat"] < 2_000 + 500
    assert calls["realpath"] < 50


def test_small_files_give_the_same_bytes_however_they_are_shared_out(
    prepare: Prepare, folder_bytes: FolderBytes, tmp_path: Path, many: Path
) -> None:
    shared = {"inputs": [many], "one_document_per_file": True}
    prepare(tmp_path / "plain", **shared)
    expected = folder_bytes(tmp_path / "plain")
    prepare(tmp_path / "two", executor=ProcessExecutor(2), task_bytes=50_000, **shared)
    assert folder_bytes(tmp_path / "two") == expected
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path / "cut", task_bytes=50_000, executor=StoppingExecutor(5), **shared)
    plan = json.loads((tmp_path / "cut" / "work" / "plan.json").read_text(encoding="utf-8"))
    assert 10 < len(plan["tasks"]) < 40
    prepare(tmp_path / "cut", **shared)
    assert folder_bytes(tmp_path / "cut") == expected


def test_the_same_files_under_other_names_and_times_are_gone_on_with(
    prepare: Prepare, folder_bytes: FolderBytes, tmp_path: Path
) -> None:
    shared = {"one_document_per_file": True, "task_bytes": 20_000}
    files = write_files(tmp_path / "files", 300)
    prepare(tmp_path / "whole", inputs=[files], **shared)
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path / "D", inputs=[files], executor=StoppingExecutor(2), **shared)
    moved = files.rename(tmp_path / "moved")
    for path in moved.rglob("*.txt"):
        os.utime(path, ns=(1, 1))
    prepare(tmp_path / "D", inputs=sorted(moved.iterdir()), **shared)
    tars = {name: data for name, data in folder_bytes(tmp_path / "D").items() if "tar" in name}
    assert tars.items() <= folder_bytes(tmp_path / "whole").items()
    made, whole = (load_manifest(tmp_path / name / "seq64") for name in ("D", "whole"))
    assert made.fingerprint == whole.fingerprint
    assert [Path(entry.path).name for entry in made.inputs.given] == ["000", "001", "002"]


def test_a_changed_file_is_named_where_the_preparation_is_unfinished(
    prepare: Prepare, tmp_path: Path
) -> None:
    shared = {"one_document_per_file": True, "task_bytes": 20_000}
    files = write_files(tmp_path / "files", 300)
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path / "D", inputs=[files], executor=StoppingExecutor(2), **shared)
    changed = files / "001" / "00123.txt"
    before = changed.stat()
    changed.write_text(changed.read_text(encoding="utf-8").upper(), encoding="utf-8")
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))  # its content decides
    with pytest.raises(DataError, match=r"the content of .*files; changed files: .*/00123\.txt\)"):
        prepare(tmp_path / "D", inputs=[files], **shared)
    changed.unlink()
    with pytest.raises(DataError, match=r"inputs: 300 files there, 299 now\)"):
        prepare(tmp_path / "D", inputs=[files], **shared)
