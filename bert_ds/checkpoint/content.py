"""What a checkpoint holds: tensors by name, without a layout, and counters.

A checkpoint is a folder: `weights.safetensors` and `optimizer.safetensors` (float32, named as the
model's parameters, so that any world size can load them, also without DeepSpeed), `state.json`
(counters and what the run was), `manifest.json` (size and SHA-256 of each file).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from bert_ds.errors import CheckpointError
from bert_ds.files import read_json_object
from data_prep.contract.storage import sha256_file

FORMAT_VERSION = 1
WEIGHTS_FILE = "weights.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
_HEADER_BYTES = 1 << 20  # BERT-large's 398 tensors need 40 KB


@dataclass(frozen=True)
class CheckpointState:
    """Everything in a checkpoint besides its tensors: counters, and what the run was."""

    phase: str
    """Name of the phase that it was written in."""
    phase_index: int
    """Number of that phase, from 0."""
    global_step: int
    """Updates applied in the phase."""
    skipped_steps: int
    """Updates of the phase that were skipped for overflow."""
    samples_seen: int
    """Sequences of the phase consumed, all ranks; the position in the data."""
    tokens_seen: int
    """Real tokens of the phase consumed, all ranks."""
    is_phase_end: bool
    """Whether the phase is complete."""
    optimizer_step: int
    """The optimizer's own count of updates, for its bias correction."""
    loss_scaler: dict[str, float]
    """State of fp16's dynamic loss scaling; empty without fp16."""
    dataset_fingerprint: str
    """Fingerprint of the phase's dataset."""
    vocabulary_sha256: str
    """SHA-256 of the vocabulary."""
    world_size: int
    """Ranks that wrote it, for information."""
    zero_stage: int
    """ZeRO stage that wrote it, for information."""
    precision: str
    """Precision of the run that wrote it, for information."""
    versions: dict[str, str]
    """Versions of the packages that wrote it."""
    rollbacks: int = 0
    """Number of the rollback that made it; 0 for a checkpoint of training."""
    rows_until: int | None = None
    """`samples_seen` of the last logged update that counts, where it differs; else None."""

    @property
    def folder_name(self) -> str:
        """The name of the checkpoint's folder; names sort by progress."""
        name = f"{self.phase_index:02d}-{self.phase}-step{self.global_step:08d}"
        return f"{name}-rollback{self.rollbacks}" if self.rollbacks else name


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has been read."""

    path: Path
    """Its folder."""
    state: CheckpointState
    """Counters and origin."""
    weights: dict[str, torch.Tensor]
    """Float32 tensors by parameter name."""
    optimizer: dict[str, torch.Tensor]
    """Float32 tensors by `exp_avg/<name>` and `exp_avg_sq/<name>`."""


def load_checkpoint(path: Path, *, with_optimizer: bool = True) -> Checkpoint:
    """Read a checkpoint. `check_files` compares checksums, on one rank for all.

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

    The heartbeat thread needs the lock (`bert_ds.distributed.heartbeat`). safetensors holds it
    while it opens the file and reads the header, so both are read before. It maps the rest
    (`backend="pread"` would read it under the lock): that is read as tensors are copied, which
    torch does without the lock.
    """
    with path.open("rb") as file:
        file.read(_HEADER_BYTES)
    return load_file(path)


def load_state(path: Path) -> CheckpointState:
    """Read a checkpoint without its tensors.

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
        CheckpointError: they differ; the message names the first parameters that do.
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
        CheckpointError: a file is missing or differs; the message names the first one.
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


def describe_files(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint's folder: size and SHA-256 of each file."""
    return {path.name: _file_entry(path) for path in sorted(folder.iterdir())}


def _file_entry(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
