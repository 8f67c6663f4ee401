"""Preparations of text that was repaired, taken out, is very long, or repeats."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep.contract.errors import InputError
from data_prep.contract.manifest import load_manifest
from data_prep.text import readers
from tests.unit.data_prep.conftest import StoppingExecutor, text_of

Prepare = Callable[..., list[Path]]
FolderBytes = Callable[[Path], dict[str, bytes]]


def test_after_an_input_was_repaired_the_work_on_the_others_is_kept(
    prepare: Prepare, folder_bytes: FolderBytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = {name: text_of(30, seed) for seed, name in enumerate(("a", "b", "c"))}
    inputs = [tmp_path / f"{name}.txt" for name in texts]
    for path, text in zip(inputs, texts.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    prepare(tmp_path / "expected", inputs=inputs, task_bytes=2000)
    whole = StoppingExecutor(1000)
    prepare(tmp_path / "again", inputs=inputs, task_bytes=2000, executor=whole)
    broken = texts["b"].encode()
    inputs[1].write_bytes(broken[:5000] + b"\xff" + broken[5001:])
    with pytest.raises(InputError, match=r"b\.txt: not UTF-8 at byte 5000"):
        prepare(tmp_path / "D", inputs=inputs, task_bytes=2000)
    done = len(list((tmp_path / "D" / "work" / "map").glob("*.json")))
    assert done >= 3
    with pytest.raises(InputError, match=r"b\.txt: not UTF-8"):  # nothing was repaired
        prepare(tmp_path / "D", inputs=inputs, task_bytes=2000)
    assert len(list((tmp_path / "D" / "work" / "map").glob("*.json"))) >= done
    inputs[1].write_bytes(broken)
    counting = StoppingExecutor(1000)
    with caplog.at_level(logging.INFO):
        prepare(tmp_path / "D", inputs=inputs, task_bytes=2000, executor=counting)
    found = re.search(r"inputs have changed; (\d+) of (\d+) map tasks are done again", caplog.text)
    assert found is not None
    redone, tasks = int(found[1]), int(found[2])
    assert 0 < redone < tasks - 2
    reduced = whole.done_now - tasks
    # A task of several inputs is done again in parts; those of whole inputs are not done again.
    assert counting.done_now <= reduced + tasks - done + 2 * redone
    assert folder_bytes(tmp_path / "D") == folder_bytes(tmp_path / "expected")


def test_after_an_input_was_taken_out_the_preparation_starts_again(
    prepare: Prepare, folder_bytes: FolderBytes, tmp_path: Path, corpus: Path
) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"\xff\n")
    with pytest.raises(InputError, match=r"bad\.txt: not UTF-8"):
        prepare(tmp_path / "D", inputs=[corpus, bad])
    prepare(tmp_path / "D", inputs=[corpus])
    prepare(tmp_path / "E", inputs=[corpus])
    assert folder_bytes(tmp_path / "D") == folder_bytes(tmp_path / "E")


def test_a_long_document_is_cut_the_same_way_by_any_task(
    prepare: Prepare, folder_bytes: FolderBytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "LONGEST_PIECE", 3000)
    lines = [line for line in text_of(200, 5).splitlines() if line]
    path = tmp_path / "a.txt"
    path.write_text(text_of(9, 1) + "\n" + "\n".join(lines) + "\n\n" + text_of(9, 2), "utf-8")
    for name, chunk, task in (("a", 1 << 20, None), ("b", 500, 700), ("c", 4000, 9000)):
        monkeypatch.setattr(readers, "CHUNK_BYTES", chunk)
        prepare(tmp_path / name, inputs=[path], task_bytes=task)
    assert folder_bytes(tmp_path / "a") == folder_bytes(tmp_path / "b")
    assert folder_bytes(tmp_path / "a") == folder_bytes(tmp_path / "c")
    # The pieces of one document are no partners of each other.
    (folder,) = prepare(tmp_path / "alone", inputs=[_written(tmp_path / "x.txt", lines)])
    totals = load_manifest(folder).train_totals
    assert totals.rows > 50
    assert totals.label_1 == 0


def _written(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_documents_that_repeat_are_counted_and_unknown_characters_named(
    prepare: Prepare, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.txt"
    repeated = "The oil is here. It was there \u2603.\n\n"
    path.write_text(text_of(20) + "\n" + repeated * 6, encoding="utf-8")
    with caplog.at_level(logging.INFO):
        (folder,) = prepare(tmp_path / "D", inputs=[path])
    manifest = load_manifest(folder)
    assert manifest.documents == 26
    assert manifest.repeated_documents == 5
    assert manifest.unknown_characters[0] == ("\u2603", 6)
    assert "WARNING repeated documents: 19.2% of 26 documents" in caplog.text
    assert "NVIDIA" not in caplog.text  # no phase of this length
    assert "shards of" in caplog.text
