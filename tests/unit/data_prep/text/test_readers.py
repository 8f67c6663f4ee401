"""Reading documents: every format, every way to cut a file, every broken file."""

from __future__ import annotations

import builtins
import gzip
import json
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.contract.errors import InputError, UsageError
from data_prep.text import readers
from data_prep.text.inputs import TextFormat
from data_prep.text.readers import cut_points, line_number, read_chunks

BLANK_LINES = TextFormat()


def read_documents(
    path: str, text_format: TextFormat, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, str]]:
    """Offset and text of every document."""
    for chunk in read_chunks(path, text_format, start, end):
        yield from zip(chunk.offsets.tolist(), chunk.texts(), strict=True)


def texts_of(path: Path, text_format: TextFormat = BLANK_LINES) -> list[str]:
    return [text for _, text in read_documents(str(path), text_format)]


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
    assert documents == [(1, " one\ntwo\n"), (15, "three\r\n")]


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


@settings(max_examples=150, deadline=None)
@given(pieces=pieces, chunk=st.integers(1, 30), start_piece=st.booleans())
def test_the_size_of_a_chunk_changes_no_document(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str], chunk: int, start_piece: bool
) -> None:
    path = tmp_path_factory.mktemp("chunk") / "a.txt"
    path.write_bytes("".join(pieces).encode())
    expected = list(read_documents(str(path), BLANK_LINES))
    text_format = TextFormat(one_document_per_file=start_piece)
    whole = texts_of(path, text_format)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(readers, "CHUNK_BYTES", chunk)
        assert list(read_documents(str(path), BLANK_LINES)) == expected
        assert texts_of(path, text_format) == whole


line = st.text(alphabet="ab \u00e9", min_size=1, max_size=12).filter(str.strip)


@settings(max_examples=150, deadline=None)
@given(
    documents=st.lists(st.lists(line, min_size=1, max_size=6), min_size=1, max_size=5),
    chunk=st.integers(1, 30),
    longest=st.integers(4, 30),
    one=st.booleans(),
)
def test_a_long_document_comes_in_pieces_that_lose_nothing_and_know_each_other(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[list[str]],
    chunk: int,
    longest: int,
    one: bool,
) -> None:
    path = tmp_path_factory.mktemp("long") / "a.txt"
    texts = ["\n".join(lines) + "\n" for lines in documents]
    path.write_text("\n".join(texts), encoding="utf-8")
    found = []
    for size in (chunk, 1 << 20):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(readers, "CHUNK_BYTES", size)
            patched.setattr(readers, "LONGEST_PIECE", longest)
            pieces: list[list[str]] = []
            for part in read_chunks(str(path), TextFormat(one_document_per_file=one)):
                for number, text in enumerate(part.texts()):
                    assert len(text.encode()) <= longest
                    if number == 0 and part.is_continued:
                        pieces[-1].append(text)
                    else:
                        pieces.append([text])
        found.append(pieces)
    assert found[0] == found[1]
    joined = ["".join("".join(parts).split()) for parts in found[0]]
    whole = ["".join(texts)] if one else texts
    assert joined == ["".join(text.split()) for text in whole]


def test_pieces_are_cut_at_line_ends_or_else_at_blanks_or_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "LONGEST_PIECE", 8)
    path = tmp_path / "a.txt"
    path.write_text("abc\ndef\nghi jkl mno\u00e9\u00e9\u00e9\u00e9\u00e9\n", encoding="utf-8")
    assert texts_of(path) == ["abc\ndef\n", "ghi jkl ", "mno\u00e9\u00e9", "\u00e9\u00e9\u00e9\n"]


def test_json_lines_are_cut_at_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"t{i}"}) + "\n" for i in range(20)), "utf-8")
    size = path.stat().st_size
    bounds = [0, *cut_points(str(path), BLANK_LINES, size, 40), None]
    assert len(bounds) > 4
    texts = [
        text
        for start, end in pairwise(bounds)
        for _, text in read_documents(str(path), BLANK_LINES, start or 0, end)
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


def test_a_file_of_one_long_line_is_cut_without_reading_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "CHUNK_BYTES", 10)
    path = tmp_path / "a.txt"
    path.write_text("word " * 100 + "\n \n" + "more " * 100 + "\n", encoding="utf-8")
    assert cut_points(str(path), BLANK_LINES, path.stat().st_size, 60) == [503]


def test_a_small_zstandard_file_of_much_text_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zst"
    path.write_bytes(zstandard.compress(b"word " * (1 << 24)))  # 80 MB in a few kB
    with readers.open_text(str(path)) as file:
        tracemalloc.start()
        assert file.read(1 << 16) == (b"word " * 20_000)[: 1 << 16]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 40 << 20
