"""Kinds of values that several subcommands take: sizes, and files to write."""

from __future__ import annotations

import pytest

from data_prep.cli import main
from data_prep.commands.arguments import size


def test_sizes_are_written_with_units(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"512M": 512 << 20, "4G": 4 << 30, "1.5GiB": 3 << 29, "2KB": 2048, "77": 77}
    assert {text: size(text) for text in sizes} == sizes
    for wrong in ("much", "inf", "G", "5X"):
        with pytest.raises(SystemExit):
            main(["shards", "--memory-per-worker", wrong])
        assert f"{wrong!r} is no size such as 512M or 4G" in capsys.readouterr().err


def test_a_file_to_write_needs_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "a.txt", "--json", "/nowhere/at/all.json"])
    assert "there is no folder /nowhere/at" in capsys.readouterr().err
