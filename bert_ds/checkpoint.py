"""Checkpoints: tensors by name, without a layout, complete or not there at all.

A checkpoint is a folder: `weights.safetensors` and `optimizer.safetensors` (float32, named as the
model's parameters, so that any world size can load them and so can anybody without DeepSpeed),
`state.json` (counters and what the run was), `manifest.json` (size and SHA-256 of each file).

Writing: files into a temporary folder, each synced; the manifest last; rename; then the pointer
`latest`. A kill at any point leaves the former checkpoint as it was and at most a temporary folder,
which the next save removes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from bert_ds.errors import CheckpointError
from bert_ds.files import read_json_object, share, sync, write_atomically

FORMAT_VERSION = 1
_TEMPORARY = ".incomplete"
_REPLACED = ".replaced"
WEIGHTS_FILE = "weights.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
_HEADER_BYTES = 1 << 20  # BERT-large's 398 tensors need 40 KB


@dataclass(frozen=True)
class CheckpointState:
    """What a checkpoint says besides its tensors.

    Attributes:
        phase: name of the phase that it was written in.
        phase_index: number of that phase, from 0.
        global_step: updates applied in the phase.
        skipped_steps: updates of the phase skipped for overflow.
        samples_seen: rows of the phase consumed, all ranks; the position in the data.
        tokens_seen: real tokens of the phase consumed, all ranks.
        is_phase_end: whether the phase is complete.
        optimizer_step: the optimizer's own count of updates, for its bias correction.
        loss_scaler: state of fp16's dynamic loss scaling; empty without fp16.
        dataset_fingerprint: of the phase's dataset.
        vocabulary_sha256: of the vocabulary.
        world_size, zero_stage, precision: the layout that wrote it, for information.
        versions: of the packages that wrote it.
        rollbacks: number of the rollback that made it; 0 for a checkpoint of training.
        rows_until: samples_seen of the last logged update that counts, where it is another.
    """

    phase: str
    phase_index: int
    global_step: int
    skipped_steps: int
    samples_seen: int
    tokens_seen: int
    is_phase_end: bool
    optimizer_step: int
    loss_scaler: dict[str, float]
    dataset_fingerprint: str
    vocabulary_sha256: str
    world_size: int
    zero_stage: int
    precision: str
    versions: dict[str, str]
    rollbacks: int = 0
    rows_until: int | None = None

    @property
    def folder_name(self) -> str:
        """Name of the checkpoint's folder; sorts by progress."""
        name = f"{self.phase_index:02d}-{self.phase}-step{self.global_step:08d}"
        return f"{name}-rollback{self.rollbacks}" if self.rollbacks else name


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has been read.

    Attributes:
        path: its folder.
        state: counters and origin.
        weights: float32 by parameter name.
        optimizer: float32 by `exp_avg/<name>` and `exp_avg_sq/<name>`.
    """

    path: Path
    state: CheckpointState
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]


def save_checkpoint(
    folder: Path,
    state: CheckpointState,
    weights: dict[str, torch.Tensor],
    optimizer: dict[str, torch.Tensor],
    *,
    is_best: bool = False,
) -> Path:
    """Write a checkpoint below `folder` and point `latest` at it, and `best` where it is that.

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
        (temporary / "manifest.json").write_text(json.dumps(_describe(temporary), indent=2) + "\n")
        for file in temporary.iterdir():
            sync(file)
        sync(temporary)
        replaced = folder / (state.folder_name + _REPLACED + _TEMPORARY)
        if final.exists():  # the same step again, after going back
            final.rename(replaced)
        temporary.rename(final)
        write_atomically(folder / "latest", state.folder_name + "\n")
        if is_best:
            write_atomically(folder / "best", state.folder_name + "\n")
        shutil.rmtree(replaced, ignore_errors=True)
    except (OSError, SafetensorError) as err:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(
            f"cannot write checkpoint {final}: {err}. Earlier checkpoints are untouched; make room "
            "or mend the folder and start the same command again"
        ) from err
    return final


def load_checkpoint(path: Path, *, with_optimizer: bool = True) -> Checkpoint:
    """Read a checkpoint. Checksums are the business of `check_files`, which one rank does for all.

    Args:
        path: its folder.
        with_optimizer: whether to read the optimizer's tensors, two thirds of the bytes.

    Raises:
        CheckpointError: a file cannot be read or is of another format.
    """
    state = load_state(path)
    try:
        weights = _load_tensors(path / WEIGHTS_FILE)
        optimizer = _load_tensors(path / OPTIMIZER_FILE) if with_optimizer else {}
    except (OSError, SafetensorError) as err:
        raise CheckpointError(f"cannot read the tensors of {path}: {err}") from err
    return Checkpoint(path, state, weights, optimizer)


def _load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read a file of tensors without holding the interpreter's lock while the disk answers.

    A thread that needs the lock says that this rank lives (`bert_ds.peers`). safetensors holds it
    while it opens the file and reads the header, so both are asked for before. It maps the rest
    (`backend="pread"` would read it under the lock): that is read as tensors are copied, which
    torch does without the lock.
    """
    with path.open("rb") as file:
        file.read(_HEADER_BYTES)
    return load_file(path)


def load_state(path: Path) -> CheckpointState:
    """What a checkpoint says besides its tensors.

    Raises:
        CheckpointError: it cannot be read or is of another format.
    """
    content = read_json_object(path / "state.json", CheckpointError)
    version = content.pop("format_version", None)
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has checkpoint format {version!r}, this version reads {FORMAT_VERSION}"
        )
    try:
        return CheckpointState(**content)
    except TypeError as err:
        raise CheckpointError(f"{path / 'state.json'}: {err}") from err


def load_weights(model: torch.nn.Module, checkpoint: Checkpoint) -> None:
    """Copy the checkpoint's weights into the model.

    Raises:
        CheckpointError: names or shapes differ.
    """
    check_weights_fit(model, checkpoint)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(checkpoint.weights[name])


def check_weights_fit(model: torch.nn.Module, checkpoint: Checkpoint) -> None:
    """Compare names and shapes of a checkpoint's weights with a model's; reads no values.

    Raises:
        CheckpointError: names the first parameters that differ.
    """
    parameters = dict(model.named_parameters())
    if parameters.keys() != checkpoint.weights.keys():
        odd = sorted(parameters.keys() ^ checkpoint.weights.keys())
        raise CheckpointError(
            f"{checkpoint.path} is of another model; it differs in {', '.join(odd[:3])}"
        )
    for name, parameter in parameters.items():
        saved = checkpoint.weights[name]
        if saved.shape != parameter.shape:
            raise CheckpointError(
                f"{checkpoint.path}: {name} has shape {tuple(saved.shape)}, the model has "
                f"{tuple(parameter.shape)}"
            )


def check_files(path: Path, *, with_optimizer: bool = True) -> None:
    """Compare a checkpoint's files with its manifest.

    Args:
        path: the checkpoint's folder.
        with_optimizer: whether to check the optimizer's file, which using a model does not need.

    Raises:
        CheckpointError: names the first file that is missing or differs.
    """
    if not path.is_dir():
        raise CheckpointError(f"no checkpoint folder at {path}")
    if not (path / "manifest.json").is_file():
        raise CheckpointError(f"{path} has no manifest.json: it is no complete checkpoint")
    for file, stated in read_json_object(path / "manifest.json", CheckpointError).items():
        if file == OPTIMIZER_FILE and not with_optimizer:
            continue
        if not (path / file).is_file():
            raise CheckpointError(f"{path} is incomplete: {file} is missing")
        found = _file_entry(path / file)
        if found != stated:
            raise CheckpointError(
                f"{path / file} has changed since it was written: {found} instead of {stated}"
            )


def newest_checkpoint(
    folder: Path, *, with_optimizer: bool = True
) -> tuple[Path | None, list[str]]:
    """The checkpoint to go on from: the one that `latest` names, else the newest whole one.

    Args:
        folder: holds the checkpoints.
        with_optimizer: see `check_files`.

    Returns:
        Its path, or None where there is none at all; and a line for each one passed over.

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
    """All checkpoints whose files are as they were written, newest first."""
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
        folder: holds the checkpoints.
        keep_last: newest ones that stay.
        keep_every_steps: those at multiples of so many updates stay, too.
    """
    best = folder / "best"
    best_name = best.read_text().strip() if best.is_file() else None
    for path in list(_candidates(folder))[keep_last:]:
        try:
            state = read_json_object(path / "state.json", CheckpointError)
        except CheckpointError:
            continue  # not one of ours, or damaged: it stays for the user to look at
        is_multiple = bool(keep_every_steps) and state["global_step"] % keep_every_steps == 0
        if not (state.get("is_phase_end") or is_multiple or path.name == best_name):
            doomed = path.with_name(path.name + _TEMPORARY)
            path.rename(doomed)
            shutil.rmtree(doomed)


def _candidates(folder: Path) -> Iterator[Path]:
    ordered = _by_age(folder)
    pointer = folder / "latest"
    if pointer.is_file():
        named = folder / pointer.read_text().strip()
        if named in ordered:
            yield named
            ordered.remove(named)
    yield from ordered


def _by_age(folder: Path) -> list[Path]:
    """Checkpoint folders, last written first.

    Not by their step: after going back to an earlier checkpoint the ones ahead of it are older than
    what is written next.
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
    """Whether it is none in the making, or one moved aside whose successor never came."""
    is_aside = path.name.endswith(_REPLACED + _TEMPORARY) and not _name_of(path).exists()
    return is_aside or not path.name.endswith(_TEMPORARY)


def _written_at(path: Path) -> tuple[int, str]:
    manifest = path / "manifest.json"
    return (manifest.stat().st_mtime_ns if manifest.is_file() else 0, path.name)


def _clear_up(folder: Path) -> None:
    """Remove what a killed save has left, and put back what it had moved aside."""
    for stale in folder.glob("*-step*" + _TEMPORARY):
        base = _name_of(stale)
        if stale.name.endswith(_REPLACED + _TEMPORARY) and not base.exists():
            stale.rename(base)
        else:
            shutil.rmtree(stale)


def _name_of(path: Path) -> Path:
    """The name that a checkpoint has, or had before it was moved aside."""
    return path.with_name(path.name.removesuffix(_REPLACED + _TEMPORARY))


def _check_room(folder: Path, tensors: list[torch.Tensor]) -> None:
    """Raises OSError where the file system has no room for the tensors."""
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            errno.ENOSPC, f"it needs {needed / 1e9:.3g} GB and {free / 1e9:.3g} GB are free"
        )


def _on_cpu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _describe(folder: Path) -> dict[str, Any]:
    return {path.name: _file_entry(path) for path in sorted(folder.iterdir())}


def _file_entry(path: Path) -> dict[str, Any]:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}
