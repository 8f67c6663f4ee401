"""Preparations in this process: contents, equal bytes, interruption, refusals."""

from __future__ import annotations

import errno
import gc
import gzip
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import webdataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.contract.errors import DataError, InputError, OutputError
from data_prep.contract.format import Block, decode_block
from data_prep.contract.manifest import load_manifest
from data_prep.contract.wordpiece import load_vocabulary
from data_prep.inspect.dataset import read_split
from data_prep.inspect.verify import verify_folder
from data_prep.running.executor import ProcessExecutor, SerialExecutor, Stage
from data_prep.stages import prepare as prepare_module
from tests.unit.data_prep.conftest import StoppingExecutor

Prepare = Callable[..., list[Path]]
FolderBytes = Callable[[Path], dict[str, bytes]]


def rows_of(folder: Path, split: str) -> Iterator[tuple[list[str], list[str], int]]:
    """Segments A and B as the pieces that stood there, and the label of every row."""
    pieces = load_vocabulary(folder / "vocab.txt").pieces
    for _, block in read_split(folder, load_manifest(folder), split):
        tokens = originals(block)
        ends = np.cumsum(block.length, dtype=int)
        for row, end in enumerate(ends):
            text = [pieces[token] for token in tokens[end - block.length[row] : end]]
            cut = int(block.segment_a_length[row])
            yield text[1 : cut - 1], text[cut:-1], int(block.pair_label[row])


def originals(block: Block) -> np.ndarray:
    """The tokens of a block before masking."""
    tokens = block.tokens.copy()
    start = np.cumsum(block.length, dtype=int) - block.length
    tokens[np.repeat(start, block.num_predictions) + block.masked_lm_positions] = (
        block.masked_lm_ids
    )
    return tokens


def names_in(segment: list[str]) -> set[str]:
    """Numbers of the documents whose sentences lie in a segment."""
    text = " ".join(segment).replace(" ##", "").split()
    places = [index for index, word in enumerate(text[:-2]) if word == "document"]
    return {text[index + 1] for index in places if text[index + 2] == "sentence"}


@pytest.mark.parametrize("masking", ["token", "whole_word"])
@pytest.mark.parametrize("pairs", ["next_sentence", "sentence_order"])
def test_a_preparation_passes_its_own_check(
    prepare: Prepare, tmp_path: Path, masking: str, pairs: str
) -> None:
    lengths = {"sequence_length": (32, 300), "max_predictions_per_seq": (4, 300)}
    folders = prepare(tmp_path / "D", masking=masking, pairs=pairs, **lengths)
    assert [folder.name for folder in folders] == ["seq32", "seq300"]
    assert sorted(path.name for path in (tmp_path / "D").iterdir()) == ["seq300", "seq32"]
    for folder in folders:
        manifest = verify_folder(folder)
        assert manifest.totals("train").rows > 30
        assert manifest.totals("valid").rows > 3
        assert manifest.parameters["seed"] == 0
        assert manifest.inputs.given[0].path.endswith("text.txt")
        assert 0.3 < manifest.totals("train").label_1 / manifest.totals("train").rows < 0.85


def test_labels_are_true_in_the_text_of_the_rows(prepare: Prepare, tmp_path: Path) -> None:
    (folder,) = prepare(tmp_path / "D", sequence_length=(48,), max_predictions_per_seq=(7,))
    checked = {0: 0, 1: 0}
    for split in ("train", "valid"):
        for a, b, label in rows_of(folder, split):
            first, second = names_in(a), names_in(b)
            if first and second:
                assert len(first) == len(second) == 1
                assert (first == second) == (label == 0)
                checked[label] += 1
    assert min(checked.values()) > 20


def test_train_and_valid_share_no_document_also_where_texts_repeat(
    prepare: Prepare, tmp_path: Path, corpus: Path
) -> None:
    copy = tmp_path / "copy.txt"
    copy.write_bytes(corpus.read_bytes())
    (folder,) = prepare(tmp_path / "D", inputs=[corpus, copy])
    names = {
        split: {name for a, b, _ in rows_of(folder, split) for name in names_in(a) | names_in(b)}
        for split in ("train", "valid")
    }
    assert names["train"] and names["valid"]
    assert names["train"].isdisjoint(names["valid"])


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves one open
def test_webdataset_reads_the_shards(prepare: Prepare, tmp_path: Path) -> None:
    (folder,) = prepare(tmp_path / "D")
    manifest = load_manifest(folder)
    files = [str(folder / shard.file) for shard in manifest.shards("train")]
    assert len(files) > 1
    dataset = webdataset.WebDataset(files, shardshuffle=False)
    samples = list(dataset)
    assert len({sample["__key__"] for sample in samples}) == len(samples)
    blocks = [decode_block(sample["npz"], sample["__key__"]) for sample in samples]
    assert sum(map(len, blocks)) == manifest.totals("train").rows
    decoded = list(webdataset.WebDataset(files, shardshuffle=False).decode())
    assert np.array_equal(decoded[0]["npz"]["tokens"], blocks[0].tokens)
    gc.collect()


def test_a_block_is_one_read_at_the_place_the_manifest_names(
    prepare: Prepare, tmp_path: Path
) -> None:
    (folder,) = prepare(tmp_path / "D")
    shard = load_manifest(folder).shards("train")[0]
    data = (folder / shard.file).read_bytes()
    for entry in shard.blocks:
        block = decode_block(data[entry.offset : entry.offset + entry.size], "here")
        assert len(block) == entry.count


def test_workers_and_task_size_do_not_change_a_byte(
    prepare: Prepare, folder_bytes: FolderBytes, tmp_path: Path
) -> None:
    prepare(tmp_path / "plain")
    prepare(tmp_path / "small", task_bytes=700)
    prepare(tmp_path / "processes", task_bytes=5000, executor=ProcessExecutor(2))
    expected = folder_bytes(tmp_path / "plain")
    assert folder_bytes(tmp_path / "small") == expected
    assert folder_bytes(tmp_path / "processes") == expected


def test_a_vocabulary_above_65536_pieces_takes_wider_ids(
    prepare: Prepare, tmp_path: Path, vocabulary_path: Path
) -> None:
    wide = tmp_path / "vocab.txt"
    lines = [f"[unused{number}]\n" for number in range(66_000)]
    wide.write_text("".join(lines) + vocabulary_path.read_text(encoding="utf-8"), encoding="utf-8")
    (folder,) = prepare(tmp_path / "D", vocabulary=wide)
    verify_folder(folder)
    block = next(read_split(folder, load_manifest(folder), "train")).block
    assert block.tokens.dtype == np.uint32
    assert int(originals(block).min()) >= 66_000


def test_the_seed_changes_the_rows_and_the_same_seed_does_not(
    prepare: Prepare, folder_bytes: FolderBytes, tmp_path: Path
) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        prepare(tmp_path / name, seed=seed)
    assert folder_bytes(tmp_path / "a") == folder_bytes(tmp_path / "b")
    assert folder_bytes(tmp_path / "a") != folder_bytes(tmp_path / "c")


def test_a_preparation_stopped_before_any_task_goes_on_with_equal_bytes(
    prepare: Prepare, folder_bytes: FolderBytes, tmp_path: Path
) -> None:
    lengths = {"sequence_length": (32, 64), "max_predictions_per_seq": (5, 10)}
    counting = StoppingExecutor(1000)
    prepare(tmp_path / "whole", task_bytes=4000, executor=counting, **lengths)
    expected, num_tasks = folder_bytes(tmp_path / "whole"), counting.finished
    assert num_tasks > 6
    for left in range(num_tasks):
        folder = tmp_path / f"stopped{left}"
        with pytest.raises(KeyboardInterrupt):
            prepare(folder, task_bytes=4000, executor=StoppingExecutor(left), **lengths)
        counting = StoppingExecutor(1000)
        prepare(folder, task_bytes=900, executor=counting, **lengths)  # its own tasks
        assert counting.finished == num_tasks  # what was done was checked
        assert counting.done_now == num_tasks - left
        assert folder_bytes(folder) == expected


def test_a_preparation_stopped_in_its_last_stage_goes_on(
    prepare: Prepare, folder_bytes: FolderBytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"sequence_length": (32, 64), "max_predictions_per_seq": (5, 10)}
    prepare(tmp_path / "whole", **options)
    expected = folder_bytes(tmp_path / "whole")
    real = prepare_module.finalise
    for stop_after in ("first manifest", "all manifests", "half a removal"):
        folder = tmp_path / stop_after.replace(" ", "-")

        def stopped(job, tasks, stop_after=stop_after):
            work = job.work
            backup = {p: p.read_bytes() for p in work.rglob("*") if p.is_file()}
            real(job, tasks)
            for path, content in backup.items():
                if stop_after != "half a removal" or path.name in ("vocab.txt", "00000.json"):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
            if stop_after == "first manifest":
                (work.parent / "seq64" / "manifest.json").unlink()
            raise KeyboardInterrupt

        monkeypatch.setattr(prepare_module, "finalise", stopped)
        with pytest.raises(KeyboardInterrupt):
            prepare(folder, **options)
        monkeypatch.setattr(prepare_module, "finalise", real)
        prepare(folder, **options)
        assert folder_bytes(folder) == expected


def test_a_complete_folder_is_left_as_it_is(
    prepare: Prepare, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder,) = prepare(tmp_path / "D")
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    with caplog.at_level(logging.INFO):
        prepare(tmp_path / "D")
    assert "is complete and made from the same inputs" in caplog.text
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_another_length_is_added_to_a_complete_folder(prepare: Prepare, tmp_path: Path) -> None:
    prepare(tmp_path / "D")
    prepare(tmp_path / "D", sequence_length=(64, 32), max_predictions_per_seq=(10, 5))
    assert sorted(path.name for path in (tmp_path / "D").iterdir()) == ["seq32", "seq64"]
    verify_folder(tmp_path / "D" / "seq32")


def test_other_parameters_or_inputs_are_refused_and_named(
    prepare: Prepare, tmp_path: Path, corpus: Path
) -> None:
    prepare(tmp_path / "D")
    with pytest.raises(DataError, match=r"seq64: holds a dataset made otherwise.*seed: 0 there"):
        prepare(tmp_path / "D", seed=1)
    other = tmp_path / "other.txt"
    other.write_text("something else\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"inputs: 1 files there, 2 now"):
        prepare(tmp_path / "D", inputs=[corpus, other])
    with pytest.raises(DataError, match=r"inputs: the content of .*other\.txt"):
        prepare(tmp_path / "D", inputs=[other])
    verify_folder(tmp_path / "D" / "seq64")


def test_an_unfinished_preparation_made_otherwise_is_refused(
    prepare: Prepare, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path / "D", executor=StoppingExecutor(1))
    with pytest.raises(DataError, match=r"unfinished preparation.*duplicate_factor: 2 there, 3"):
        prepare(tmp_path / "D", duplicate_factor=3)
    with pytest.raises(DataError, match=r"tool_version"):
        plan = tmp_path / "D" / "work" / "plan.json"
        content = json.loads(plan.read_text(encoding="utf-8"))
        plan.write_text(json.dumps({**content, "tool_version": "0.0"}), encoding="utf-8")
        prepare(tmp_path / "D")


@pytest.mark.parametrize("damaged", ["groups.json", "groups/train-00000.json"])
def test_a_damaged_work_folder_is_said_with_the_way_out(
    prepare: Prepare, tmp_path: Path, damaged: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path / "D", executor=StoppingExecutor(1))  # after the map stage
    path = tmp_path / "D" / "work" / damaged
    path.write_bytes(b"")
    work = tmp_path / "D" / "work"
    with pytest.raises(DataError, match=rf"is damaged: remove {work} and run the command again"):
        prepare(tmp_path / "D")


def test_an_input_that_changes_while_it_is_read_is_an_error(
    prepare: Prepare, tmp_path: Path, corpus: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(corpus.read_bytes())

    class Changing(SerialExecutor):
        def run(self, stage: Stage) -> None:
            with path.open("a", encoding="utf-8") as file:
                file.write("more\n")
            super().run(stage)

    with pytest.raises(InputError, match=r"a\.txt: changed while it was read"):
        prepare(tmp_path / "D", inputs=[path], executor=Changing())
    (folder,) = prepare(tmp_path / "D", inputs=[path])
    verify_folder(folder)


def test_names_that_are_no_text_are_no_hindrance(
    prepare: Prepare, tmp_path: Path, corpus: Path
) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")
    Path(name).write_bytes(corpus.read_bytes())
    (folder,) = prepare(tmp_path / "D", inputs=[Path(name)])
    assert verify_folder(folder).inputs.given[0].path == name


def test_files_of_others_are_neither_used_nor_removed(prepare: Prepare, tmp_path: Path) -> None:
    (tmp_path / "D" / "work").mkdir(parents=True)
    (tmp_path / "D" / "work" / "thesis.tex").write_text("x", encoding="utf-8")
    with pytest.raises(DataError, match=r"holds thesis\.tex, which is none of bert-prep's"):
        prepare(tmp_path / "D")
    assert (tmp_path / "D" / "work" / "thesis.tex").exists()
    (tmp_path / "E" / "seq64").mkdir(parents=True)
    (tmp_path / "E" / "seq64" / "train-9.tar").write_bytes(b"")
    with pytest.raises(DataError, match="not empty"):
        prepare(tmp_path / "E")


def test_a_second_run_in_the_same_folder_is_refused(prepare: Prepare, tmp_path: Path) -> None:
    class SecondRun(SerialExecutor):
        def run(self, stage: Stage) -> None:
            with pytest.raises(DataError, match="another bert-prep is at work"):
                prepare(tmp_path / "D")
            super().run(stage)

    prepare(tmp_path / "D", executor=SecondRun())
    verify_folder(tmp_path / "D" / "seq64")


@pytest.mark.parametrize("content", [b"", b"\n\n \t\n", b"\x00\x01\n", "\u200b\n".encode()])
def test_text_without_a_document_is_an_error_and_leaves_nothing(
    prepare: Prepare, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match="no document with text"):
        prepare(tmp_path / "D", inputs=[path])
    assert list((tmp_path / "D").iterdir()) == []


def test_text_can_be_corrected_after_an_error(prepare: Prepare, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"the cat is here. it was.\n\nthe oil is caf\xe9 there.\n")
    with pytest.raises(InputError, match=r"byte 40, line 3"):
        prepare(tmp_path / "D", inputs=[path])
    path.write_bytes(b"the cat is here. it was.\n\nthe oil is there.\n")
    (folder,) = prepare(tmp_path / "D", inputs=[path])
    verify_folder(folder)


def test_an_error_in_another_process_is_the_same_error(prepare: Prepare, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xff")
    with pytest.raises(InputError, match="not UTF-8 at byte 0"):
        prepare(tmp_path / "D", inputs=[path], executor=ProcessExecutor(2))


def test_one_document_gives_true_pairs_and_says_so(
    prepare: Prepare, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("The oil is here. It was there. We can see it.\n" * 5, encoding="utf-8")
    (folder,) = prepare(tmp_path / "D", inputs=[path])
    manifest = verify_folder(folder)
    assert manifest.totals("valid").rows == 0
    assert manifest.totals("train").label_1 == 0
    assert "there is only one document (or equal ones), and it is for training" in caplog.text
    assert "there are no random partners" in caplog.text
    assert "--one-document-per-file" in caplog.text


def test_a_single_piece_gives_no_row_and_is_an_error(prepare: Prepare, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("the\n", encoding="utf-8")
    with pytest.raises(InputError, match="give no row"):
        prepare(tmp_path / "D", inputs=[path])


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    documents=st.lists(st.text(min_size=1, max_size=80), min_size=1, max_size=8),
    masking=st.sampled_from(["token", "whole_word"]),
    length=st.integers(8, 40),
)
def test_any_text_gives_a_folder_that_passes_its_check_or_a_clear_error(
    prepare: Prepare,
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[str],
    masking: str,
    length: int,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), "utf-8")
    lengths = {"sequence_length": (length,), "max_predictions_per_seq": (5,)}
    try:
        (made,) = prepare(folder / "D", inputs=[path], masking=masking, **lengths)
    except InputError as err:
        assert "no document with text" in str(err) or "give no row" in str(err)
    else:
        verify_folder(made)


def test_every_format_of_the_same_documents_gives_the_same_rows(
    prepare: Prepare, folder_bytes: FolderBytes, tmp_path: Path, corpus: Path
) -> None:
    content = corpus.read_bytes()
    plain, packed = tmp_path / "p" / "a.txt", tmp_path / "q" / "a.txt.gz"
    for path, data in ((plain, content), (packed, gzip.compress(content, mtime=0))):
        path.parent.mkdir()
        path.write_bytes(data)
        prepare(path.parent / "D", inputs=[path])
    shards = [
        {name: data for name, data in folder_bytes(path.parent / "D").items() if "tar" in name}
        for path in (plain, packed)
    ]
    assert shards[0] == shards[1]
    assert len(shards[0]) > 1


@pytest.mark.parametrize("num_documents", [2, 3, 4, 7])
def test_few_documents_still_fill_both_splits(
    prepare: Prepare, tmp_path: Path, num_documents: int
) -> None:
    path = tmp_path / "a.txt"
    documents = [f"the oil is here {i}. it was {i} there. see {i}." for i in range(num_documents)]
    path.write_text("\n\n".join(documents), encoding="utf-8")
    for fraction in (0.0001, 0.9):
        (folder,) = prepare(tmp_path / f"D{fraction}", inputs=[path], valid_fraction=fraction)
        manifest = verify_folder(folder)
        assert manifest.totals("train").rows > 0
        assert manifest.totals("valid").rows > 0
        if num_documents >= 4:  # two documents on each side: random partners for both
            assert manifest.totals("valid").label_1 + manifest.totals("train").label_1 > 0


def test_no_held_out_share_gives_no_valid_shard(prepare: Prepare, tmp_path: Path) -> None:
    (folder,) = prepare(tmp_path / "D", valid_fraction=0.0)
    assert load_manifest(folder).shards("valid") == ()
    assert load_manifest(folder).totals("valid").rows == 0


def test_a_full_disk_is_named_and_the_same_command_goes_on(
    prepare: Prepare, folder_bytes: FolderBytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path / "whole")
    import data_prep.contract.storage

    real, calls = data_prep.contract.storage.os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(data_prep.contract.storage.os, "fsync", full)
    with pytest.raises(OutputError, match=r"D/.*disk is full \(\d+ MiB free.*run the same command"):
        prepare(tmp_path / "D")
    monkeypatch.setattr(data_prep.contract.storage.os, "fsync", real)
    prepare(tmp_path / "D")
    assert folder_bytes(tmp_path / "D") == folder_bytes(tmp_path / "whole")


def test_an_output_that_cannot_be_made_is_an_error(prepare: Prepare, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(OutputError, match="cannot be written"):
        prepare(tmp_path / "file" / "D")


def test_a_shard_lost_from_a_complete_folder_is_named(prepare: Prepare, tmp_path: Path) -> None:
    (folder,) = prepare(tmp_path / "D")
    (folder / "train-00000-000.tar").unlink()
    with pytest.raises(DataError, match=r"train-00000-000\.tar: missing"):
        prepare(tmp_path / "D")
