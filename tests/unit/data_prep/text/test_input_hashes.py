"""Checksums of the input files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from data_prep.contract.errors import InputError
from data_prep.text import input_hashes
from data_prep.text.input_hashes import hash_here, hash_items, runs
from data_prep.text.inputs import find_inputs
from tests.unit.data_prep.conftest import files_of


def test_the_checksum_is_that_of_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_hashes, "_READ_BYTES", 7)
    contents = [b"abc", b"", b"0123456", bytes(range(256))]
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.txt").write_bytes(content)
    progress: list[int] = []
    files = hash_here(find_inputs([str(tmp_path)]).files, progress.append)
    # The published test vector of SHA-256.
    assert files.digests[0].tobytes().hex().startswith("ba7816bf8f01cfea")
    assert [row.tobytes() for row in files.digests] == [
        hashlib.sha256(content).digest() for content in contents
    ]
    assert sum(progress) == 266


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x")
    files = find_inputs([str(tmp_path)]).files
    (tmp_path / "a.txt").unlink()
    with pytest.raises(InputError, match=r"a\.txt: cannot be read \(No such file or directory\)"):
        hash_here(files, lambda size: None)


def test_files_are_shared_out_by_size_and_number() -> None:
    costs = np.array([5, 5, 11, 1, 1, 8, 1, 30])
    assert list(runs(costs, 10)) == [(0, 2), (2, 3), (3, 6), (6, 7), (7, 8)]
    assert list(runs(np.zeros(0, np.int64), 10)) == []
    sizes = {f"{number}.txt": 0 for number in range(5_000)}
    sizes["large.txt"] = 1 << 40
    items = hash_items(files_of(sizes))
    assert [len(item.name_ends) for item in items] == [2048, 2048, 904, 1]
    assert b"".join(item.names for item in items) == "".join(sizes).encode()
    assert [item.bytes for item in items] == [0, 0, 0, 1 << 40]
