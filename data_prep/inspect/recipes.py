"""How many rows the phases of a training recipe use, for estimates of epochs.

A recipe folder is read as far as that needs: `phases` of its `recipe.json`, and `train_batch_size`
of the DeepSpeed JSON of each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from data_prep.contract.errors import UsageError

_PUBLISHED = (
    ("NVIDIA's phase 1", 128, 65_536 * 7_038),
    ("NVIDIA's phase 2", 512, 32_768 * 1_563),
)
"""NVIDIA DeepLearningExamples, PyTorch BERT-large, pretrain_config.sh."""
_SHIPPED = Path(__file__).resolve().parents[2] / "ds_configs"


class PhaseRows(NamedTuple):
    """Rows that a phase trains on, all updates together."""

    name: str
    """Name of the phase."""
    sequence_length: int
    """Tokens of a full row."""
    rows: int
    """Rows that the phase trains on, repeated ones counted again."""


def read_phases(recipe: Path | None) -> list[PhaseRows]:
    """Return the phases of a recipe, a folder or the name of a shipped one.

    Without one they are those of the published recipe for BERT-large.

    Raises:
        UsageError: it cannot be read, or a phase lacks a size.
    """
    if recipe is None:
        return [PhaseRows(*phase) for phase in _PUBLISHED]
    folder = recipe if recipe.is_dir() else _SHIPPED / recipe
    try:
        content = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
        return [_phase(folder, phase) for phase in content["phases"]]
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise UsageError(
            f"--recipe {recipe}: no recipe with phases, steps and train_batch_size "
            f"({type(err).__name__}: {err}); give a folder, or a name such as bert-large."
        ) from err


def _phase(recipe: Path, phase: dict[str, Any]) -> PhaseRows:
    """Return one phase; KeyError, TypeError or ValueError where something is missing."""
    deepspeed = json.loads((recipe / phase["deepspeed"]).read_text(encoding="utf-8"))
    rows = int(phase["total_steps"]) * int(deepspeed["train_batch_size"])
    return PhaseRows(str(phase["name"]), int(phase["sequence_length"]), rows)
