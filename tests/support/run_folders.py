"""What a run folder holds, read to be compared with another's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

_TIMES = ("step_s", "data_wait_s", "evaluation_s", "duration_s", "peak_memory_mib")


def summary_of(run_folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run_folder / "summary.json").read_text())
    return content


def phases_of(run_folder: Path) -> list[dict[str, Any]]:
    """The summary's phases without their times."""
    return [timeless(phase) for phase in summary_of(run_folder)["phases"]]


def rows_of(run_folder: Path) -> list[dict[str, Any]]:
    """The logged updates."""
    lines = (run_folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def num_rows(run_folder: Path) -> int:
    """Logged updates so far; 0 before there is a file."""
    path = run_folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without what differs between two equal runs.

    These are times, and what only the last row of a flush holds; a stop flushes, too.
    """
    apart = (*_TIMES, "trust_ratios_furthest")
    return {k: v for k, v in row.items() if not k.endswith("_per_s") and k not in apart}


def final_tensors(run_folder: Path) -> dict[str, torch.Tensor]:
    """Weights and moments of the newest checkpoint."""
    folder = run_folder / "checkpoints"
    newest = folder / (folder / "latest").read_text().strip()
    return {
        **load_file(newest / "weights.safetensors"),
        **load_file(newest / "optimizer.safetensors"),
    }


def assert_same_result(run_folder: Path, undisturbed: Path) -> None:
    """Weights, moments, held-out result, and every logged update once."""
    expected, found = final_tensors(undisturbed), final_tensors(run_folder)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert summary_of(run_folder)["held_out"] == summary_of(undisturbed)["held_out"]
    assert phases_of(run_folder) == phases_of(undisturbed)
    assert [timeless(row) for row in rows_of(run_folder)] == [
        timeless(row) for row in rows_of(undisturbed)
    ]
