"""Finding input files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from data_prep.errors import InputError, UsageError
from data_prep.inputs import find_inputs, hash_input


def test_folders_are_recursed_in_order_and_other_files_left_out(tmp_path: Path) -> None:
    for name in ("b/z.txt", "b/a.jsonl.gz", "a.txt", "c.md", ".hidden/x.txt", ".x.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = find_inputs([str(tmp_path)])
    assert [str(Path(path).relative_to(tmp_path)) for path in found.paths] == [
        "a.txt",
        "b/a.jsonl.gz",
        "b/z.txt",
    ]


def test_each_file_knows_under_which_name_it_was_given(tmp_path: Path) -> None:
    for name in ("b/z.txt", "b/a.txt", "c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = find_inputs([str(tmp_path / "c.txt"), str(tmp_path / "b")])
    assert [Path(path).name for path in found.paths] == ["c.txt", "a.txt", "z.txt"]
    assert found.given == [0, 1, 1]


def test_inputs_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.md").write_text("x", encoding="utf-8")
    (tmp_path / "a.txt").write_text("x", encoding="utf-8")
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    cases = [
        ("nowhere.txt", UsageError, "no such file or folder"),
        ("a.md", UsageError, "told by the suffix"),
        ("empty", InputError, "no file in it ends in one of"),
    ]
    for name, kind, message in cases:
        with pytest.raises(kind, match=message):
            find_inputs([str(tmp_path / name)])
    with pytest.raises(UsageError, match=r"link\.txt is the same file as .*a\.txt"):
        find_inputs([str(tmp_path / "a.txt"), str(tmp_path / "link.txt")])


def test_the_checksum_is_that_of_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"abc")
    entry = hash_input(str(path))
    assert entry.bytes == 3
    assert entry.sha256.startswith("ba7816bf8f01cfea")  # the published test vector of SHA-256


def test_our_own_files_are_not_read_as_text(tmp_path: Path) -> None:
    text, inside = tmp_path / "text", tmp_path / "text" / "made" / "vocab.txt"
    text.mkdir()
    (text / "a.txt").write_text("x", encoding="utf-8")
    assert find_inputs([str(text)], [tmp_path / "vocab.txt"]).paths == [str(text / "a.txt")]
    for path, ours in ((text, inside), (text / "a.txt", text / "a.txt"), (text, text)):
        with pytest.raises(UsageError, match="would be read as text"):
            find_inputs([str(path)], [ours])


def test_links_to_nothing_and_special_files_are_refused_and_named(tmp_path: Path) -> None:
    for name, make, message in (
        ("b.txt", lambda path: path.symlink_to(tmp_path / "none"), "a link to nothing"),
        ("c.txt", lambda path: path.symlink_to(path), "a link to nothing"),
        ("d.txt", lambda path: os.mkfifo(path), "not a regular file"),
    ):
        folder = tmp_path / name[0]
        folder.mkdir()
        (folder / "a.txt").write_text("x", encoding="utf-8")
        make(folder / name)
        with pytest.raises(InputError, match=rf"{name}: {message}"):
            find_inputs([str(folder)])
    with pytest.raises(InputError, match="not a regular file"):
        find_inputs([str(tmp_path / "d" / "d.txt")])
