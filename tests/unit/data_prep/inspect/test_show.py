"""Rows as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_prep.contract.errors import DataError, UsageError
from data_prep.contract.manifest import load_manifest
from data_prep.inspect.show import show_rows


def test_show_prints_masks_originals_and_the_label_in_words(folder: Path) -> None:
    text = "\n".join(show_rows(folder, "train", 0, 40, is_coloured=False))
    assert text.count("\nrow ") == 40
    assert "[MASK:" in text
    assert "{kept:" in text
    assert "{random:" in text
    assert "next_sentence_label 0 (B follows A)" in text
    assert "next_sentence_label 1 (B is from another document)" in text
    assert "\x1b" not in text
    assert "\x1b[1;32m[MASK:" in "\n".join(show_rows(folder, "train", 0, 40, is_coloured=True))


def test_show_begins_anywhere_also_across_blocks(folder: Path) -> None:
    everything = list(show_rows(folder, "train", 0, 10**6, is_coloured=False))
    assert len(everything) == 1 + load_manifest(folder).totals("train").rows
    assert list(show_rows(folder, "train", 14, 5, is_coloured=False))[1:] == everything[15:20]
    with pytest.raises(UsageError, match="the first is 0"):
        list(show_rows(folder, "train", 10**6, 1, is_coloured=False))


def test_show_names_a_broken_shard(folder: Path) -> None:
    (folder / "train-00000-000.tar").write_bytes(b"\x00" * 2048)
    with pytest.raises(DataError, match=r"train-00000-000\.tar block 0: no tar member"):
        list(show_rows(folder, "train", 0, 1, is_coloured=False))
