"""Checkpoints on disk: written whole or not at all, found again, and removed when they are old.

What makes this hard: the process may be killed, and the host may lose power, between any two system
calls, and a run must find a whole checkpoint afterwards. That follows from the order of the writes,
which must not change:

1. All files go into a folder whose name ends in `.incomplete`; the manifest, with the checksums of
   the others, is the last of them.
2. Each file is synced, then the folder: a rename must not reach the disk before the content does.
3. A checkpoint of the same name is moved aside to `.replaced.incomplete`.
4. The folder is renamed to its final name.
5. The pointers `latest` and `best` are replaced, each by a rename.
6. What was moved aside is removed.

A kill up to 2 leaves the former checkpoint as it was, and a folder that the next save removes. A
kill between 3 and 4 leaves the former one under its `.replaced` name, where the search for
checkpoints finds it and the next save restores it. A kill after 4 leaves a pointer to an older,
whole checkpoint.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from bert_ds.checkpoint.content import (
    FORMAT_VERSION,
    OPTIMIZER_FILE,
    WEIGHTS_FILE,
    CheckpointState,
    check_files,
    describe_files,
)
from bert_ds.checkpoint.pointers import best, latest, point_to
from bert_ds.errors import CheckpointError
from bert_ds.files import read_json_object, share
from data_prep.contract.storage import sync

_TEMPORARY = ".incomplete"
_REPLACED = ".replaced"


def save_checkpoint(
    folder: Path,
    state: CheckpointState,
    weights: dict[str, torch.Tensor],
    optimizer: dict[str, torch.Tensor],
    *,
    is_best: bool = False,
) -> Path:
    """Write a checkpoint below `folder` and point `latest` at it, and `best` where it is that.

    Args:
        folder: the folder of all checkpoints of the run.
        state: where the run stands.
        weights: the model's tensors by name.
        optimizer: the optimizer's moments by name.
        is_best: whether its evaluation is the best one of the run.

    Raises:
        CheckpointError: it could not be written, for example because there is no room for it; what
            was there before is untouched.
    """
    final = folder / state.folder_name
    temporary = folder / (state.folder_name + _TEMPORARY)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _clear_up(folder)
        _check_room(folder, [*weights.values(), *optimizer.values()])
        temporary.mkdir()
        for name, tensors in ((WEIGHTS_FILE, weights), (OPTIMIZER_FILE, optimizer)):
            save_file(_on_cpu(tensors), temporary / name, metadata={"format": "pt"})
            share(temporary / name)
        content = {"format_version": FORMAT_VERSION, **asdict(state)}
        (temporary / "state.json").write_text(json.dumps(content, indent=2) + "\n")
        (temporary / "manifest.json").write_text(
            json.dumps(describe_files(temporary), indent=2) + "\n"
        )
        for file in temporary.iterdir():
            sync(file)
        sync(temporary)
        replaced = folder / (state.folder_name + _REPLACED + _TEMPORARY)
        if final.exists():  # the same step again, after going back
            final.rename(replaced)
        temporary.rename(final)
        point_to(final, is_best=is_best)
        shutil.rmtree(replaced, ignore_errors=True)
    except (OSError, SafetensorError) as err:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(
            f"cannot write checkpoint {final}: {err}. Earlier checkpoints are untouched; make room "
            "or repair the folder, and start the same command again"
        ) from err
    return final


def newest_checkpoint(
    folder: Path, *, with_optimizer: bool = True
) -> tuple[Path | None, list[str]]:
    """Return the checkpoint to resume from: the one that `latest` names, else the newest whole one.

    Args:
        folder: the folder of all checkpoints of the run.
        with_optimizer: see `check_files`.

    Returns:
        Its path, or None where there is none at all; and a line for each checkpoint passed over.

    Raises:
        CheckpointError: there are checkpoints, and none of them is whole.
    """
    complaints: list[str] = []
    found_any = False
    for path in _candidates(folder):
        found_any = True
        try:
            check_files(path, with_optimizer=with_optimizer)
        except CheckpointError as err:
            complaints.append(f"passed over {path}: {err}")
            continue
        return path, complaints
    if found_any:
        raise CheckpointError(
            f"no checkpoint in {folder} is whole: {'; '.join(complaints)}. Restore one, or start "
            "again in another folder"
        )
    return None, complaints


def whole_checkpoints(folder: Path) -> Iterator[Path]:
    """Yield the checkpoints whose files are as they were written, newest first."""
    for path in _candidates(folder):
        try:
            check_files(path)
        except CheckpointError:
            continue
        yield path


def remove_old_checkpoints(
    folder: Path, keep_last: int, keep_every_steps: int | None = None
) -> None:
    """Remove all but the newest `keep_last` checkpoints; ends of phases and the best one stay.

    Args:
        folder: the folder of all checkpoints of the run.
        keep_last: number of the newest ones that stay.
        keep_every_steps: those at multiples of this number of updates stay, too.
    """
    best_one = best(folder)
    for path in list(_candidates(folder))[keep_last:]:
        try:
            state = read_json_object(path / "state.json", CheckpointError)
        except CheckpointError:
            continue  # not one of ours, or damaged: it stays for the user to look at
        is_multiple = bool(keep_every_steps) and state["global_step"] % keep_every_steps == 0
        if not (state.get("is_phase_end") or is_multiple or path == best_one):
            doomed = path.with_name(path.name + _TEMPORARY)
            path.rename(doomed)
            shutil.rmtree(doomed)


def _candidates(folder: Path) -> Iterator[Path]:
    ordered = _by_age(folder)
    newest = latest(folder)
    if newest in ordered:
        yield newest
        ordered.remove(newest)
    yield from ordered


def _by_age(folder: Path) -> list[Path]:
    """Return the checkpoint folders, last written first.

    Their steps give another order: after a return to an earlier checkpoint, those ahead of it are
    older than what is written next.
    """
    if not folder.is_dir():
        return []
    found = [
        path
        for path in folder.iterdir()
        if path.is_dir() and "-step" in path.name and _is_a_checkpoint(path)
    ]
    return sorted(found, key=_written_at, reverse=True)


def _is_a_checkpoint(path: Path) -> bool:
    """Return whether it is finished, or was moved aside for a successor that never came."""
    is_aside = path.name.endswith(_REPLACED + _TEMPORARY) and not _name_of(path).exists()
    return is_aside or not path.name.endswith(_TEMPORARY)


def _written_at(path: Path) -> tuple[int, str]:
    manifest = path / "manifest.json"
    return (manifest.stat().st_mtime_ns if manifest.is_file() else 0, path.name)


def _clear_up(folder: Path) -> None:
    """Remove what a killed save has left, and restore what it had moved aside."""
    for stale in folder.glob("*-step*" + _TEMPORARY):
        base = _name_of(stale)
        if stale.name.endswith(_REPLACED + _TEMPORARY) and not base.exists():
            stale.rename(base)
        else:
            shutil.rmtree(stale)


def _name_of(path: Path) -> Path:
    """Return the path of a checkpoint, before it was moved aside."""
    return path.with_name(path.name.removesuffix(_REPLACED + _TEMPORARY))


def _check_room(folder: Path, tensors: list[torch.Tensor]) -> None:
    """Raise OSError where the file system has no room for the tensors."""
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            errno.ENOSPC, f"it needs {needed / 1e9:.3g} GB and {free / 1e9:.3g} GB are free"
        )


def _on_cpu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
