"""The pointer files `latest` and `best` next to the checkpoints, readable without torch."""

from __future__ import annotations

from pathlib import Path

from bert_ds.files import write_atomically

_LATEST = "latest"
_BEST = "best"


def latest(folder: Path) -> Path | None:
    """Return the checkpoint that was written last; None before the first one."""
    return _read(folder, _LATEST)


def best(folder: Path) -> Path | None:
    """Return the checkpoint with the best evaluation; None where none is kept."""
    return _read(folder, _BEST)


def point_to(checkpoint: Path, *, is_best: bool) -> None:
    """Make a checkpoint the latest one, and the best one where it is that."""
    for pointer in (_LATEST, _BEST) if is_best else (_LATEST,):
        write_atomically(checkpoint.parent / pointer, checkpoint.name + "\n")


def _read(folder: Path, pointer: str) -> Path | None:
    path = folder / pointer
    return folder / path.read_text().strip() if path.is_file() else None
