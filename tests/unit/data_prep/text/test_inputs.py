"""Finding input files."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from data_prep.contract.errors import InputError, UsageError
from data_prep.text import inputs
from data_prep.text.inputs import find_inputs, is_compressed, is_gzip, is_json_lines, is_zstandard


def write(folder: Path, *names: str) -> None:
    """Files that hold their own names."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name, encoding="utf-8")


def names_in(folder: Path, *given: Path) -> list[str]:
    """What is found, by its path in `folder`."""
    files = find_inputs([str(path) for path in given or [folder]]).files
    paths = [Path(files.path(index)) for index in range(len(files))]
    return [str(path.relative_to(folder)) for path in paths]


def test_folders_are_recursed_in_the_order_of_whole_paths_and_other_files_left_out(
    tmp_path: Path,
) -> None:
    names = ["a.txt", "b-c/x.txt", "b.txt", "b/a.jsonl.gz", "b/z.txt", "ba/q.TXT", "\u00e9.txt"]
    write(tmp_path, *reversed(names), "c.md", ".hidden/x.txt", ".x.txt")
    assert names_in(tmp_path) == names == sorted(names)


def test_each_file_is_known_by_the_path_it_was_given_by(tmp_path: Path) -> None:
    write(tmp_path, "b/z.txt", "b/a.txt", "c.txt")
    found = find_inputs([str(tmp_path / "c.txt"), str(tmp_path / "b")])
    assert [Path(found.files.path(index)).name for index in range(3)] == ["c.txt", "a.txt", "z.txt"]
    assert found.first == [0, 1, 3]
    assert found.files.sizes.tolist() == [5, 7, 7]
    assert found.files.changed_ns[0] == (tmp_path / "c.txt").stat().st_mtime_ns


def test_the_case_of_a_suffix_does_not_matter() -> None:
    assert is_gzip("a.TXT.GZ") and is_compressed("A.TXT.GZ") and not is_json_lines("A.TXT.GZ")
    assert is_zstandard("a.JsonL.Zst") and is_compressed("a.JsonL.Zst") and is_json_lines("x.JSONL")
    assert not is_json_lines("a.jsonl.txt") and not is_compressed("gz.txt")


def test_files_that_are_not_read_are_counted_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "f", "a.txt", "b.TXT", "wiki_00", "wiki_01", "c.json", "d.tar.gz")
    assert names_in(tmp_path / "f") == ["a.txt", "b.TXT"]
    (line,) = caplog.messages
    assert "4 files are not read" in line
    assert "2 without suffix, " in line
    assert "1 .json" in line
    assert "1 .tar.gz" in line
    assert line.count(str(tmp_path / "f")) == 3  # the first names
    caplog.clear()
    write(tmp_path / "g", *(f"part.{number}" for number in range(100)))
    with pytest.raises(InputError, match=r"no file in it ends in one of .* \(in it: .*1 \.\d"):
        names_in(tmp_path / "g")
    write(tmp_path / "g", "a.txt")
    names_in(tmp_path / "g")
    (line,) = caplog.messages
    assert "80 with other suffixes" in line
    assert len(line) < 1_000
    caplog.clear()
    write(tmp_path / "h", "a.txt", ".hidden")
    names_in(tmp_path / "h")
    assert caplog.messages == []


def test_linked_folders_are_read_and_loops_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "in/a.txt", "in/sub/b.txt", "far/c.txt", "far/deep/d.txt")
    (tmp_path / "in" / "far").symlink_to("../far")
    with caplog.at_level(logging.INFO):
        assert names_in(tmp_path / "in") == ["a.txt", "far/c.txt", "far/deep/d.txt", "sub/b.txt"]
    assert "links to folders are followed: 1" in caplog.text
    (tmp_path / "in" / "sub" / "loop").symlink_to("..")  # what is being read
    (tmp_path / "far" / "itself").symlink_to(".")
    (tmp_path / "in" / "once more").symlink_to("../far/deep")  # read already, or soon
    assert names_in(tmp_path / "in") == ["a.txt", "far/c.txt", "far/deep/d.txt", "sub/b.txt"]
    (tmp_path / "link").symlink_to("in")
    assert names_in(tmp_path / "link") == ["a.txt", "far/c.txt", "far/deep/d.txt", "sub/b.txt"]


def test_a_link_to_the_folder_above_is_followed_and_what_is_read_already_is_not_again(
    tmp_path: Path,
) -> None:
    write(tmp_path, "all/in/a.txt", "all/other/b.txt")
    (tmp_path / "all" / "in" / "up").symlink_to("..")
    assert names_in(tmp_path / "all" / "in") == ["a.txt", "up/other/b.txt"]


def test_of_two_links_to_one_folder_the_first_is_read(tmp_path: Path) -> None:
    write(tmp_path, "far/c.txt", "in/a.txt")
    for name in ("one", "two"):
        (tmp_path / "in" / name).symlink_to("../far")
    assert names_in(tmp_path / "in") == ["a.txt", "one/c.txt"]


def test_a_linked_file_is_read_once_and_hard_links_are_files_of_their_own(tmp_path: Path) -> None:
    write(tmp_path, "in/a.txt", "in/m.txt", "far/b.txt")
    (tmp_path / "in" / "0.txt").symlink_to("m.txt")
    (tmp_path / "in" / "z.txt").symlink_to("../far/b.txt")
    (tmp_path / "in" / "n.txt").hardlink_to(tmp_path / "in" / "m.txt")
    assert names_in(tmp_path / "in") == ["0.txt", "a.txt", "n.txt", "z.txt"]
    found = find_inputs([str(tmp_path / "in" / "m.txt"), str(tmp_path / "far")])
    assert found.first == [0, 1, 2]


def test_a_file_in_two_of_the_paths_given_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "in/a.txt", "in/sub/b.txt", "far/b.txt")
    (tmp_path / "far" / "in").symlink_to("../in")
    for other in ("in", "in/a.txt", "far"):
        with pytest.raises(UsageError, match=r"is the same file as .*; give it once"):
            names_in(tmp_path, tmp_path / "in", tmp_path / other)


def test_names_of_any_bytes_come_back(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9 \n.txt")
    (tmp_path / name).write_bytes(b"")
    assert names_in(tmp_path) == [name]


def test_inputs_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.md").write_text("x", encoding="utf-8")
    (tmp_path / "a.txt").write_text("x", encoding="utf-8")
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    cases = [
        ("nowhere.txt", UsageError, "no such file or folder"),
        ("a.md", UsageError, "the suffix names the format"),
        ("empty", InputError, "no file in it ends in one of"),
    ]
    for name, kind, message in cases:
        with pytest.raises(kind, match=message):
            find_inputs([str(tmp_path / name)])
    with pytest.raises(UsageError, match=r"link\.txt is the same file as .*a\.txt"):
        find_inputs([str(tmp_path / "a.txt"), str(tmp_path / "link.txt")])


def test_our_own_files_are_not_read_as_text(tmp_path: Path) -> None:
    text, inside = tmp_path / "text", tmp_path / "text" / "made" / "vocab.txt"
    text.mkdir()
    (text / "a.txt").write_text("x", encoding="utf-8")
    assert len(find_inputs([str(text)], [tmp_path / "vocab.txt"]).files) == 1
    for path, ours in ((text, inside), (text / "a.txt", text / "a.txt"), (text, text)):
        with pytest.raises(UsageError, match="would be read as text"):
            find_inputs([str(path)], [ours])
    write(tmp_path, "D/vocab.txt", "mine.txt")
    for link, target in (("up", ".."), ("D", "../D"), ("x.txt", "../mine.txt")):
        (text / link).symlink_to(target)
        with pytest.raises(UsageError, match=rf"text/{link}: .* would be read as text"):
            find_inputs([str(text)], [tmp_path / "D", tmp_path / "mine.txt"])
        (text / link).unlink()


def test_links_to_nothing_and_special_files_are_refused_and_named(tmp_path: Path) -> None:
    for name, make, message in (
        ("b.txt", lambda path: path.symlink_to(tmp_path / "none"), "a link to nothing"),
        ("c.txt", lambda path: path.symlink_to(path), "a link to nothing"),
        ("d.txt", lambda path: os.mkfifo(path), "not a regular file"),
        ("e", lambda path: path.symlink_to(tmp_path / "moved"), "a link to nothing"),
    ):
        folder = tmp_path / name[0]
        folder.mkdir()
        (folder / "a.txt").write_text("x", encoding="utf-8")
        make(folder / name)
        with pytest.raises(InputError, match=rf"{name}: {message}"):
            find_inputs([str(folder)])
    with pytest.raises(InputError, match="not a regular file"):
        find_inputs([str(tmp_path / "d" / "d.txt")])
    with pytest.raises(UsageError, match="no such file or folder"):
        find_inputs([str(tmp_path / "b" / "b.txt")])


def test_a_folder_that_cannot_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a.txt", "closed/b.txt")
    real = os.scandir

    def scandir(path: bytes) -> object:
        if b"closed" in path:
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(inputs.os, "scandir", scandir)
    with pytest.raises(InputError, match=r"closed: cannot be listed \(Permission denied\)"):
        names_in(tmp_path)


def test_a_file_costs_one_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, *(f"{number // 50}/{number}.txt" for number in range(200)))
    calls: list[object] = []
    real = os.stat
    monkeypatch.setattr(
        inputs.os, "stat", lambda *path, **how: calls.append(path) or real(*path, **how)
    )
    assert len(names_in(tmp_path)) == 200
    assert len(calls) <= 200 + 4 + 10  # a file, a folder, what was given
