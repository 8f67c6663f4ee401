"""Reading documents: every format, every way to cut a file, every broken file."""

from __future__ import annotations

import builtins
import gzip
import json
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import InputError, UsageError
from data_prep.inputs import TextFormat
from data_prep.readers import cut_points, line_number, read_documents

BLANK_LINES = TextFormat()


def texts_of(path: Path, text_format: TextFormat = BLANK_LINES) -> list[str]:
    return [document.text for document in read_documents(str(path), text_format)]


def packed(content: bytes, suffix: str) -> bytes:
    if suffix == ".gz":
        return gzip.compress(content)
    return zstandard.compress(content) if suffix == ".zst" else content


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_blank_lines_separate_documents_and_offsets_are_those_of_the_text(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(packed(b"\n one\ntwo\n \t\r\n\nthree\r\n\n", suffix))
    documents = list(read_documents(str(path), BLANK_LINES))
    assert [tuple(d) for d in documents] == [(1, " one\ntwo\n"), (15, "three\r\n")]


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone")
    assert texts_of(path) == ["one"]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "one"}')
    assert texts_of(path) == ["one"]


def test_one_document_per_file_takes_blank_lines_in(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n\ntwo", encoding="utf-8")
    assert texts_of(path, TextFormat(one_document_per_file=True)) == ["one\n\ntwo"]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_json_line_is_a_document(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    lines = [json.dumps({"body": "one\n\nstill one", "id": 1}), "", json.dumps({"body": "two"})]
    path.write_bytes(packed("\n".join(lines).encode(), suffix))
    assert texts_of(path, TextFormat(json_field="body")) == ["one\n\nstill one", "two"]


def test_several_zstandard_frames_are_one_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zst"
    path.write_bytes(zstandard.compress(b"one\n") + zstandard.compress(b"\ntwo\n" * 2))
    assert texts_of(path) == ["one\n", "two\n", "two\n"]


pieces = st.lists(st.sampled_from(["a", "bc\n", "\n", " \n", "d\r\n", "\n\n"]), max_size=40)


@settings(max_examples=150, deadline=None)
@given(pieces=pieces, step=st.integers(1, 30))
def test_a_file_cut_anywhere_gives_every_document_once(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str], step: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "a.txt"
    path.write_bytes("".join(pieces).encode())
    size = path.stat().st_size
    cuts = cut_points(str(path), BLANK_LINES, size, step)
    assert cuts == sorted(set(cuts))
    assert all(0 < cut < size for cut in cuts)
    bounds = [0, *cuts, None]
    parts = [
        document
        for start, end in pairwise(bounds)
        for document in read_documents(str(path), BLANK_LINES, start or 0, end)
    ]
    assert parts == list(read_documents(str(path), BLANK_LINES))


def test_json_lines_are_cut_at_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"t{i}"}) + "\n" for i in range(20)), "utf-8")
    size = path.stat().st_size
    bounds = [0, *cut_points(str(path), BLANK_LINES, size, 40), None]
    assert len(bounds) > 4
    texts = [
        document.text
        for start, end in pairwise(bounds)
        for document in read_documents(str(path), BLANK_LINES, start or 0, end)
    ]
    assert texts == [f"t{i}" for i in range(20)]


def test_text_that_is_not_utf8_names_file_byte_and_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\ntwo\ncaf\xe9 x\n")
    with pytest.raises(
        InputError, match=r"a\.txt: not UTF-8 at byte 12, line 4 \(byte 0xe9"
    ) as got:
        texts_of(path)
    assert got.value.exit_code == 1
    assert line_number(str(path), 12) == 4


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'"text"', "found str"),
        (b'{"Text": "x"}', r"no text in field 'text' \(found \['Text'\]\)"),
        (b'{"text": null}', "no text in field 'text'"),
        (b'{"text": "\\ud800"}', "half a surrogate pair"),
        (b'{"text": "caf\xe9"}', "not UTF-8"),
    ],
)
def test_a_bad_json_line_names_file_and_line(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "fine"}\n\n' + line + b"\n")
    with pytest.raises(InputError, match=rf"a\.jsonl.*line 3.*{message}|{message}.*line 3"):
        texts_of(path)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("damage", ["cut", "changed", "none of it"])
def test_a_damaged_compressed_file_is_an_error(tmp_path: Path, suffix: str, damage: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    whole = packed(bytes(range(32, 120)) * 3000, suffix)
    broken = {
        "cut": whole[: len(whole) // 2],
        "changed": whole[:12] + bytes([whole[12] ^ 255]) + whole[13:],
        "none of it": b"plain text",
    }
    path.write_bytes(broken[damage])
    with pytest.raises(InputError, match=rf"a\.txt{suffix}: cannot be read"):
        texts_of(path)


def test_zst_without_the_package_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt.zst"
    path.write_bytes(zstandard.compress(b"one"))
    real_import = builtins.__import__

    def without_zstandard(name: str, *args: object, **kwargs: object) -> object:
        if name == "zstandard":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_zstandard)
    with pytest.raises(UsageError, match=r"pip install zstandard"):
        texts_of(path)
