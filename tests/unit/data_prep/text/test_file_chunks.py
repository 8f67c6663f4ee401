"""Small files read together give the documents of each read alone."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.contract.errors import InputError
from data_prep.text import file_chunks, readers
from data_prep.text.file_chunks import read_files
from data_prep.text.input_files import InputFiles
from data_prep.text.inputs import TextFormat, find_inputs
from data_prep.text.readers import read_chunks

Found = list[tuple[int, int, str]]


def together(files: InputFiles, text_format: TextFormat) -> Found:
    """File, offset and text of every document."""
    return [
        (int(number), int(offset), text)
        for chunk, inputs in read_files(files, text_format)
        for number, offset, text in zip(inputs, chunk.offsets, chunk.texts(), strict=True)
    ]


def one_by_one(files: InputFiles, text_format: TextFormat) -> Found:
    return [
        (number, int(offset), text)
        for number in range(len(files))
        for chunk in read_chunks(files.path(number), text_format)
        for offset, text in zip(chunk.offsets, chunk.texts(), strict=True)
    ]


TEXT = st.text(st.sampled_from("ab\u00e9 \n\t\r\ufeff"), max_size=40)


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.tuples(TEXT, st.sampled_from([".txt", ".txt.gz", ".jsonl", ".JSONL.gz"]))),
    is_one_document=st.booleans(),
    chunk_bytes=st.sampled_from([4, 25, 2 << 20]),
)
def test_documents_are_those_of_each_file_alone(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[tuple[str, str]],
    is_one_document: bool,
    chunk_bytes: int,
) -> None:
    folder = tmp_path_factory.mktemp("files")
    (folder / "zz.txt").write_bytes(b"last")
    for number, (text, suffix) in enumerate(texts):
        content = text.encode()
        if "jsonl" in suffix.lower():
            lines = [json.dumps({"text": line}) for line in text.splitlines()]
            content = "\n \n".join(lines).encode()
        packed = gzip.compress(content) if suffix.endswith("gz") else content
        (folder / f"{number:02d}{suffix}").write_bytes(packed)
    text_format = TextFormat(is_one_document)
    files = find_inputs([str(folder)]).files
    expected = one_by_one(files, text_format)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "CHUNK_BYTES", chunk_bytes)
        assert together(files, text_format) == expected


def test_a_thousand_files_are_one_chunk_and_opened_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1_000):
        (tmp_path / f"{number:03d}.txt").write_text(f"{number}\n\nb", encoding="utf-8")
    files = find_inputs([str(tmp_path)]).files
    calls: list[str] = []
    for name in ("open", "stat", "fstat"):
        real = getattr(os, name)
        counted = lambda *a, name=name, real=real: calls.append(name) or real(*a)  # noqa: E731
        monkeypatch.setattr(file_chunks.os, name, counted)
    ((chunk, inputs),) = read_files(files, TextFormat(), number=7)
    assert len(chunk.texts()) == 2_000
    assert inputs.tolist() == [7 + number // 2 for number in range(2_000)]
    assert (calls.count("open"), calls.count("fstat"), calls.count("stat")) == (1_000, 1_000, 0)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("b.txt", b"ok\n\nnot \xff"),
        ("b.txt", b"\xef\xbb\xbfbroken \xc3"),  # the rest of the letter begins the next file
        ("b.jsonl", b'{"text": "a"}\n{"tex": "a"}\n'),
        ("b.jsonl", b"nothing"),
        ("b.txt.gz", gzip.compress(b"text of some length", mtime=0)[:-9]),
        ("b.txt.gz", b"no gzip"),
    ],
)
def test_errors_are_those_of_the_file_alone(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(b"a")
    (tmp_path / name).write_bytes(content)
    (tmp_path / "c.txt").write_bytes(b"\xa9")
    files = find_inputs([str(tmp_path)]).files
    with pytest.raises(InputError) as alone:
        one_by_one(files, TextFormat())
    assert name in str(alone.value)
    with pytest.raises(InputError) as here:
        together(files, TextFormat())
    assert str(here.value) == str(alone.value)


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_file_that_has_changed_or_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, chunk_bytes: int
) -> None:
    monkeypatch.setattr(readers, "CHUNK_BYTES", chunk_bytes)
    path = tmp_path / name
    content = gzip.compress(b"text") if name.endswith("gz") else b"text"
    path.write_bytes(content)
    files = find_inputs([str(tmp_path)]).files
    assert together(files, TextFormat()) == [(0, 0, "text")]
    before = path.stat().st_mtime_ns
    os.utime(path, ns=(before, before + 1))
    with pytest.raises(InputError, match=rf"{name}: changed while it was read"):
        together(files, TextFormat())
    path.write_bytes(content + content)
    os.utime(path, ns=(before, before))
    with pytest.raises(InputError, match=rf"{name}: changed while it was read"):
        together(files, TextFormat())
    path.unlink()
    with pytest.raises(InputError, match=rf"{name}: cannot be read"):
        together(files, TextFormat())
