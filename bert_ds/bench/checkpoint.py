"""`bert-ds bench checkpoint`: measures what a checkpoint costs a run, and how long it loads.

Training waits while the tensors are put together on the first rank, and while the checkpoint before
is still being written; writing itself overlaps with the next updates.
"""

from __future__ import annotations

import functools
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from bert_ds.checkpoint.content import CheckpointState, check_files, load_checkpoint, load_weights
from bert_ds.checkpoint.store import save_checkpoint
from bert_ds.checkpoint.writer import tensors_of
from bert_ds.config.recipe import RunConfig
from bert_ds.distributed.communicator import init_process_group, shutdown
from bert_ds.distributed.world import World
from bert_ds.engine import check_precision
from bert_ds.model.families import PretrainingModel, family_of
from bert_ds.optim.rule import MOMENTS
from bert_ds.optim.state import load_optimizer_tensors
from bert_ds.train import setup

T = TypeVar("T")

STAGES = ("put together", "written", "checked", "loaded")


@dataclass(frozen=True)
class CheckpointBench:
    """Median seconds of each stage, and what they were measured on."""

    recipe: str
    """Name of the recipe of the model."""
    folder: str
    """Folder of the checkpoints."""
    gigabytes: float
    """Size of a checkpoint, 10^9 bytes."""
    zero_stage: int
    """ZeRO stage of the engine."""
    precision: str
    """Precision of the engine."""
    device: str
    """Device that held the weights."""
    repeats: int
    """Number of rounds."""
    seconds: dict[str, float]
    """Median seconds by stage; training waits for the first stage only."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def bench_checkpoint(
    config: RunConfig, folder: Path, repeats: int, world: World, device: torch.device
) -> CheckpointBench:
    """Save and load the recipe's model `repeats` times.

    Args:
        config: settings of a run, whose first phase decides the engine.
        folder: a folder on the file system to measure; what is written there is removed.
        repeats: number of rounds.
        world: this rank, the only one.
        device: device of the engine.

    Raises:
        CheckpointError: there is no room in `folder`.
        ConfigError: the device cannot compute in the recipe's precision.
    """
    phase = config.phases[0]
    check_precision(phase.name, phase.deepspeed.precision)
    init_process_group(world, device)
    model = setup.build_model(config, device)
    engine = setup.build_engine(phase, model, phase.plan_batch(1), world)
    moments = {
        f"{moment}/{name}": torch.zeros_like(parameter, device="cpu", dtype=torch.float32)
        for moment in MOMENTS
        for name, parameter in setup.build_model(config, torch.device("cpu")).named_parameters()
    }
    load_optimizer_tensors(engine.optimizer, moments, step=1)
    del moments
    state = _state(config)
    seconds: dict[str, list[float]] = {stage: [] for stage in STAGES}
    size = 0

    def timed(stage: str, action: Callable[[], T]) -> T:
        started = time.perf_counter()
        result = action()
        seconds[stage].append(time.perf_counter() - started)
        return result

    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-", dir=folder) as name:
        for _ in range(repeats):
            tensors = timed("put together", lambda: tensors_of(engine))
            saved = functools.partial(save_checkpoint, Path(name), state, *tensors)
            path = timed("written", saved)
            del tensors, saved
            size = sum(file.stat().st_size for file in path.iterdir())
            timed("checked", functools.partial(check_files, path))
            timed(
                "loaded",
                functools.partial(_load, path, family_of(config.model).build(config.model)),
            )
    engine.destroy()
    shutdown()
    return CheckpointBench(
        recipe=config.recipe,
        folder=str(folder),
        gigabytes=size / 1e9,
        zero_stage=phase.deepspeed.zero_stage,
        precision=phase.deepspeed.precision,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        repeats=repeats,
        seconds={stage: statistics.median(values) for stage, values in seconds.items()},
    )


def _load(path: Path, model: PretrainingModel) -> None:
    """Load a checkpoint and use all its tensors: each is read from the disk at its first use."""
    loaded = load_checkpoint(path)
    load_weights(model, loaded)
    for moment in loaded.optimizer.values():
        moment.clone()


def _state(config: RunConfig) -> CheckpointState:
    phase = config.phases[0]
    return CheckpointState(
        phase=phase.name,
        phase_index=0,
        global_step=1,
        skipped_steps=0,
        samples_seen=0,
        tokens_seen=0,
        is_phase_end=False,
        optimizer_step=1,
        loss_scaler={},
        dataset_fingerprint="",
        vocabulary_sha256="",
        world_size=1,
        zero_stage=phase.deepspeed.zero_stage,
        precision=phase.deepspeed.precision,
        versions=setup.package_versions(),
    )


def as_text(bench: CheckpointBench) -> str:
    """Return the result as a table."""
    lines = [
        f"{bench.recipe}: a checkpoint of {bench.gigabytes:.2f} GB in {bench.folder}, ZeRO stage "
        f"{bench.zero_stage}, {bench.precision}, {bench.device}; medians of {bench.repeats} rounds",
        "",
    ]
    notes = {
        "put together": "training waits for it",
        "written": "during training: files, checksums, sync",
        "checked": "checksums, when a run resumes",
        "loaded": "when a run resumes",
    }
    for stage, seconds in bench.seconds.items():
        rate = bench.gigabytes / seconds
        lines.append(f"{stage:14}{seconds:8.2f} s {rate:8.2f} GB/s   {notes[stage]}")
    return "\n".join(lines)
