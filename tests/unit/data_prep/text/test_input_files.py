"""The columns of the input files: written, read in parts, summed up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_prep.contract.errors import DataError
from data_prep.text.input_files import MOST_NAMED, InputFiles, StoredFiles, summary_of, write_files
from tests.unit.data_prep.conftest import files_of


@pytest.fixture
def files() -> InputFiles:
    """Seven files whose columns are all different."""
    files = files_of({f"folder/{'x' * index}.txt": 100 + index for index in range(7)})
    return replace(files, changed_ns=np.arange(7) + 10**18, weights=np.arange(7) / 2)


def columns(files: InputFiles) -> list[list[object]]:
    return [np.asarray(column).tolist() for column in vars(files).values()]


def test_columns_are_read_back_whole_and_in_parts(files: InputFiles, tmp_path: Path) -> None:
    stored = StoredFiles(tmp_path / write_files(files, tmp_path))
    assert len(stored) == 7
    assert stored.sizes().tolist() == files.sizes.tolist()
    assert columns(stored.part(0, 7)) == columns(files)
    for first in range(8):
        for last in range(first, 8):
            part = stored.part(first, last)
            assert [part.path(n) for n in range(len(part))] == [
                files.path(n) for n in range(first, last)
            ]
            assert part.weights.tolist() == files.weights[first:last].tolist()
            assert part.changed_ns.tolist() == files.changed_ns[first:last].tolist()
            assert np.array_equal(part.digests, files.digests[first:last])


def test_the_file_is_named_after_its_content(files: InputFiles, tmp_path: Path) -> None:
    name = write_files(files, tmp_path)
    assert write_files(files, tmp_path) == name
    assert write_files(replace(files, changed_ns=files.changed_ns + 1), tmp_path) != name
    assert write_files(replace(files, names=files.names[::-1]), tmp_path) != name


@pytest.mark.parametrize("kept", [0, 10, 16, 300, -1])
def test_a_damaged_file_is_an_error_with_the_way_out(
    files: InputFiles, tmp_path: Path, kept: int
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    path = work / write_files(files, work)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=rf"is damaged: remove {work} and run the command again"):
        StoredFiles(path)
    path.unlink()
    with pytest.raises(DataError, match=rf"is damaged: remove {work} and"):
        StoredFiles(path)


def test_the_checksum_of_a_summary_follows_contents_sizes_weights_and_their_order(
    files: InputFiles,
) -> None:
    def sha256(files: InputFiles) -> str:
        return summary_of(files, ["in"], [0, 7]).sha256

    expected = sha256(files)
    assert sha256(files_of({})) != expected
    assert sha256(replace(files, names=files.names[::-1], changed_ns=-files.changed_ns)) == expected
    others = [replace(files, **{name: getattr(files, name)[::-1]}) for name in
              ("sizes", "weights", "digests")]  # fmt: skip
    assert len({expected, *map(sha256, others)}) == 4
    regrouped = summary_of(files, ["a", "b"], [0, 3, 7])
    assert regrouped.identity() == summary_of(files, ["in"], [0, 7]).identity()
    assert [entry.files for entry in regrouped.given] == [3, 4]
    assert [entry.bytes for entry in regrouped.given] == [303, 418]


def test_a_summary_has_a_bounded_number_of_entries() -> None:
    given = [f"{index}.txt" for index in range(1_000)]
    files = files_of(dict.fromkeys(given, 3))
    summary = summary_of(files, given, range(1_001))
    assert len(summary.given) == MOST_NAMED == 100
    assert summary.given[98].path == "98.txt"
    rest = summary.given[99]
    assert (rest.path, rest.files, rest.bytes) == ("901 further paths", 901, 2703)
    assert rest.weight == 1.0
    assert sum(entry.files for entry in summary.given) == summary.files == 1_000
    mixed = replace(files, weights=np.arange(1_000) + 1.0)
    assert summary_of(mixed, given, range(1_001)).given[99].weight is None
    exact = summary_of(files_of(dict.fromkeys(given[:100], 3)), given[:100], range(101))
    assert exact.given[99].path == "99.txt"
