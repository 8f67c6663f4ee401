"""What a run logs about its data before it starts."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from bert_ds.config.loading import load_run_config
from bert_ds.train.setup import files_seen, open_phase_data
from bert_ds.train.start import judge_phase_data
from tests.support.datasets import make_dataset
from tests.support.recipes import write_recipe


def test_worthless_shares_are_logged_once_a_dataset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_dataset(tmp_path / "seq32", sequence_length=32, num_valid=0)
    make_dataset(tmp_path / "seq64", sequence_length=64, num_valid=120)
    config = load_run_config(write_recipe(tmp_path / "recipe"), [])
    opened = open_phase_data(config, tmp_path)
    with caplog.at_level(logging.WARNING):
        judge_phase_data([*opened, opened[0]])
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{tmp_path / 'seq32'}: held-out rows: there are none")
    assert "\n  fix: raise --valid-fraction" in record.getMessage()


def test_copies_of_a_dataset_are_other_files_and_a_link_to_it_is_not(tmp_path: Path) -> None:
    for length in (32, 64):
        make_dataset(tmp_path / "data" / f"seq{length}", sequence_length=length)
    config = load_run_config(write_recipe(tmp_path / "recipe"), [])
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    os.symlink(tmp_path / "data", tmp_path / "link")
    seen = {name: files_seen(config, tmp_path / name) for name in ("data", "copy", "link")}
    assert seen["data"] == seen["link"] != seen["copy"]
    assert files_seen(config, tmp_path / "nowhere") == files_seen(config, tmp_path / "nothing")
