"""What was made at commit 40168df is still read, or refused with advice.

`tests/fixtures/run_at_40168df` holds a complete run of the tiny recipe of `tests.support.recipes`
(four updates a phase) and the manifest of one of its datasets, written by that commit.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from bert_ds.checkpoint.content import check_files, load_checkpoint
from tests.support.commands import run_bert_ds
from tests.support.run_folders import summary_of

FIXTURE = Path(__file__).parents[1] / "fixtures" / "run_at_40168df"


@pytest.fixture
def earlier_run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURE / "run", tmp_path / "run"))


def test_a_checkpoint_loads(earlier_run: Path) -> None:
    folder = earlier_run / "checkpoints" / "01-phase2-step00000004"
    check_files(folder)
    checkpoint = load_checkpoint(folder)
    assert (checkpoint.state.phase, checkpoint.state.global_step) == ("phase2", 4)
    assert checkpoint.optimizer.keys() == {
        f"{moment}/{name}" for moment in ("exp_avg", "exp_avg_sq") for name in checkpoint.weights
    }
    assert all(torch.isfinite(value).all() for value in checkpoint.optimizer.values())


def test_a_run_folder_is_reported_and_exported(earlier_run: Path, tmp_path: Path) -> None:
    assert run_bert_ds("report", "--run", earlier_run).returncode == 0
    page = (earlier_run / "report.html").read_text(encoding="utf-8")
    accuracy = summary_of(earlier_run)["held_out"]["nsp_accuracy"]
    assert f"{accuracy:.1%}" in page
    done = run_bert_ds("export-hf", "--run", earlier_run, "--output-dir", tmp_path / "hf")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "hf" / "model.safetensors").is_file()


def test_a_dataset_of_the_former_format_is_refused_with_advice(earlier_run: Path) -> None:
    done = run_bert_ds("evaluate", "--run", earlier_run, "--data", FIXTURE / "data")
    assert done.returncode == 1
    assert "format_version is 2, this version reads 3; prepare the data again" in done.stderr
