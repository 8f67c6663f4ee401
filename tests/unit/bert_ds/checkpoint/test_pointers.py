"""The pointer files next to the checkpoints."""

from __future__ import annotations

from pathlib import Path

from bert_ds.checkpoint.pointers import best, latest, point_to


def test_a_folder_without_checkpoints_has_neither(tmp_path: Path) -> None:
    assert latest(tmp_path) is None
    assert best(tmp_path / "missing") is None


def test_the_latest_follows_and_the_best_stays(tmp_path: Path) -> None:
    point_to(tmp_path / "00-phase1-step00000004", is_best=True)
    point_to(tmp_path / "00-phase1-step00000008", is_best=False)
    assert latest(tmp_path) == tmp_path / "00-phase1-step00000008"
    assert best(tmp_path) == tmp_path / "00-phase1-step00000004"
    assert (tmp_path / "best").read_text() == "00-phase1-step00000004\n"
