"""Evaluation during training: rows, best checkpoint, a target that ends a phase; at every stage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import run_bert_ds
from tests.support.datasets import make_dataset
from tests.support.ranks import run_on_ranks
from tests.support.recipes import tiny_recipe, write_recipe
from tests.support.runs import pretrain_in_rank

pytestmark = pytest.mark.slow


def rows_of(output: Path, file: str = "evaluations.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / file).read_text().splitlines()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe, and held-out rows that do not divide over two ranks."""
    folder = tmp_path_factory.mktemp("evaluation")
    for length in (32, 64):
        make_dataset(folder / "data" / f"seq{length}", sequence_length=length, num_valid=21)
    write_recipe(folder / "recipe", tiny_recipe(total_steps=(8, 4)))
    return folder


SETTINGS = [
    "evaluation.every_steps=2", "evaluation.micro_batch_size=4", "checkpoint.keep_last=1",
    "checkpoint.keep_best=true",
]  # fmt: skip


@pytest.mark.parametrize("stage", [pytest.param(0, marks=pytest.mark.long), 3])
def test_every_rank_takes_part_at_every_stage_and_all_rows_count_once(
    place: Path, tmp_path: Path, stage: int
) -> None:
    output = tmp_path / "run"
    settings = [*SETTINGS, f"deepspeed.zero_optimization.stage={stage}"]
    run_on_ranks(2, pretrain_in_rank, tmp_path, place / "recipe", place / "data", output, settings)
    found = rows_of(output)
    assert [(row["phase"], row["global_step"]) for row in found] == [
        ("phase1", 2), ("phase1", 4), ("phase1", 6), ("phase1", 8), ("phase2", 2), ("phase2", 4),
    ]  # fmt: skip
    assert {row["sequences"] for row in found} == {21}
    held_out = json.loads((output / "summary.json").read_text())["held_out"]
    for key in ("mlm_loss", "mlm_accuracy", "nsp_accuracy", "predictions"):
        assert found[-1][key] == pytest.approx(held_out[key], rel=1e-5)
    best = min((row for row in found if row["phase"] == "phase2"), key=lambda row: row["mlm_loss"])
    named = (output / "checkpoints" / "best").read_text().strip()
    assert named == f"01-phase2-step{best['global_step']:08d}"
    assert (output / "checkpoints" / named / "manifest.json").exists()


def test_a_target_ends_its_phase_and_the_same_command_finds_it_complete(
    place: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    command = ["pretrain", "--recipe", place / "recipe", "--data", place / "data"]
    settings = ["--set", *SETTINGS, "phases.0.target_mlm_accuracy=0.0001"]
    done = run_bert_ds(*command, "--output-dir", output, *settings)
    assert done.returncode == 0, done.stderr
    reached = next(row for row in rows_of(output) if row["mlm_accuracy"] >= 0.0001)
    assert reached["phase"] == "phase1"
    steps = [row["global_step"] for row in rows_of(output, "metrics.jsonl")]
    assert steps == [*range(1, reached["global_step"] + 1), 1, 2, 3, 4]
    assert "held-out mlm_loss" in done.stderr
    assert "its target, a held-out MLM accuracy of 0.0001, is reached" in done.stderr
    summary = json.loads((output / "summary.json").read_text())
    assert summary["status"] == "complete"
    assert summary["phases"][0]["global_step"] == reached["global_step"]
    again = run_bert_ds(*command, "--output-dir", output, *settings)
    assert "is complete, nothing to do" in again.stdout


def test_resuming_repeats_evaluations_without_doubling_their_rows(
    place: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    command = [
        "pretrain", "--recipe", place / "recipe", "--data", place / "data",
        "--output-dir", output, "--set", "evaluation.every_steps=1", "checkpoint.keep_last=9",
    ]  # fmt: skip
    assert run_bert_ds(*command).returncode == 0
    expected = without_times(rows_of(output))
    kept = "00-phase1-step00000006"
    for folder in (output / "checkpoints").glob("*-step*"):
        if folder.name > kept:
            shutil.rmtree(folder)
    (output / "checkpoints" / "latest").write_text(kept)
    (output / "summary.json").unlink()
    done = run_bert_ds(*command)
    assert done.returncode == 0, done.stderr
    assert without_times(rows_of(output)) == expected


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "evaluation_s"} for row in rows]


@pytest.mark.parametrize(
    "settings", ["checkpoint.keep_best=true", "phases.0.target_mlm_accuracy=0.7"]
)
def test_what_needs_evaluations_asks_for_them(place: Path, tmp_path: Path, settings: str) -> None:
    done = run_bert_ds(
        "pretrain", "--recipe", place / "recipe", "--data", place / "data",
        "--output-dir", tmp_path / "run", "--set", settings,
    )  # fmt: skip
    assert done.returncode == 2
    assert "needs evaluations during training: set evaluation.every_steps" in done.stderr
