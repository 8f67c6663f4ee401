"""Wiring: builds the objects that the loop takes from the settings of a run."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from bert_ds import __version__
from bert_ds.config.batch import BatchPlan
from bert_ds.config.model import ModelConfig
from bert_ds.config.recipe import PhaseConfig, RunConfig
from bert_ds.data.cache import ShardCache
from bert_ds.data.masks import DynamicMasks, held_out_masks, is_left_to_the_reader
from bert_ds.data.reader import BlockReader, open_dataset
from bert_ds.data.rows import StreamSpec
from bert_ds.data.stream import TrainStream
from bert_ds.distributed.world import World
from bert_ds.engine import TrainEngine
from bert_ds.errors import ConfigError, DataError
from bert_ds.metrics.gpus import peak_tflop_per_s
from bert_ds.metrics.throughput import Throughput
from bert_ds.model.execution import apply_execution
from bert_ds.model.families import PretrainingModel, family_of
from bert_ds.model.shapes import shape_of
from bert_ds.objectives import PRETRAINING
from bert_ds.optim import Lamb, param_groups
from bert_ds.train.init_from import check_init_from
from data_prep.contract.manifest import MANIFEST_NAME, VOCABULARY_NAME, Manifest, dataset_folder
from data_prep.contract.masking import MaskingKind
from data_prep.contract.storage import sha256_file


@dataclass(frozen=True)
class PhaseData:
    """A phase's dataset, opened and checked against the settings."""

    folder: Path
    """The dataset's folder."""
    manifest: Manifest
    """Its manifest."""

    @property
    def vocabulary(self) -> Path:
        """The dataset's vocabulary file."""
        return self.folder / VOCABULARY_NAME


@dataclass(frozen=True)
class PhaseSetup:
    """What trains one phase, and the rows that it trains on."""

    engine: TrainEngine
    """The engine, which holds model and optimizer."""
    stream: TrainStream
    """This rank's rows."""
    batch: BatchPlan
    """How an update is split over ranks and micro batches."""
    peak_learning_rate: float
    """The factor of the schedule."""


def select_device(world: World) -> torch.device:
    """Return the GPU of this rank, or the CPU.

    The host's cores are shared among its ranks in both cases: an offloaded optimizer uses them too.
    DeepSpeed's own DS_ACCELERATOR=cpu keeps a run off the GPUs of a machine that has some.

    Raises:
        ConfigError: there are more ranks than GPUs on this host.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        cores = len(os.sched_getaffinity(0))
        torch.set_num_threads(max(1, cores // world.local_world_size))
    if torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu":
        if world.local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"local rank {world.local_rank} has no GPU: this host has "
                f"{torch.cuda.device_count()}; start at most that many ranks on it"
            )
        device = torch.device("cuda", world.local_rank)
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


def files_seen(config: RunConfig, data: Path) -> int:
    """Return a number that is equal on ranks that see the very same dataset files.

    Ranks with an equal number share the check of the shards, so that on a shared file system each
    shard is checked once and not once per rank. Hosts with copies of their own check all of theirs.
    """
    seen = []
    for phase in config.phases:
        with contextlib.suppress(OSError):  # `open_phase_data` reports what is missing
            status = os.stat(dataset_folder(data, phase.sequence_length) / MANIFEST_NAME)
            seen.append((status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return zlib.crc32(repr(seen).encode())


def open_phase_data(
    config: RunConfig,
    data: Path,
    phases: Sequence[PhaseConfig] | None = None,
    part: int = 0,
    num_parts: int = 1,
) -> list[PhaseData]:
    """Open the dataset of every phase and check it against the settings, before any training.

    Args:
        config: settings of the run.
        data: the folder that holds one dataset folder per sequence length.
        phases: the phases whose datasets to open; None for all.
        part: number of this process among those that share the check of the shards, from 0.
        num_parts: processes that see the same files and share the check of the shards.

    Raises:
        DataError: a dataset is missing or broken, or does not fit the model, the phase or the
            other phases, or was made with another vocabulary than `init_from`.
        ConfigError: dynamic masking is asked for, and a dataset is masked already; `init_from` is
            another model.
        CheckpointError: there is no BERT in `init_from`.
    """
    opened = []
    for phase in config.phases if phases is None else phases:
        folder = dataset_folder(data, phase.sequence_length)
        manifest = open_dataset(folder, part, num_parts)
        _check_fits(config, phase, folder, manifest)
        _check_vocabulary(folder, manifest)
        _check_masking(config, folder, manifest)
        check_init_from(config, folder, manifest)
        opened.append(PhaseData(folder, manifest))
    vocabularies = {entry.manifest.vocabulary.sha256 for entry in opened}
    if len(vocabularies) > 1:
        named = ", ".join(f"{e.folder}: {e.manifest.vocabulary.sha256[:12]}" for e in opened)
        raise DataError(f"the phases' datasets have different vocabularies ({named})")
    return opened


def build_model(config: RunConfig, device: torch.device) -> PretrainingModel:
    """Build a model with initial weights, which are equal on all ranks."""
    family = family_of(config.model)
    model = family.build(config.model)
    family.init_weights(model, config.seed)
    model.to(device)
    apply_execution(model, config.execution)
    return model


def build_phase(
    config: RunConfig, phase_index: int, model: PretrainingModel, data: PhaseData, world: World
) -> PhaseSetup:
    """Build the engine, the optimizer and the stream of rows of one phase.

    Args:
        config: settings of the run.
        phase_index: number of the phase in the recipe, from 0.
        model: the model, on its device.
        data: the phase's dataset.
        world: this rank.
    """
    phase = config.phases[phase_index]
    batch = phase.plan_batch(world.world_size)
    unused = model.parameters_of_heads(PRETRAINING.heads_without_answers(data.manifest))
    engine = build_engine(phase, model, batch, world, unused, config.max_skipped_in_a_row)
    spec = stream_spec(config, data, batch, world.rank)
    stream = TrainStream(spec, config.execution.batch_layout)
    return PhaseSetup(engine, stream, batch, phase.deepspeed.optimizer.lr)


def build_engine(
    phase: PhaseConfig,
    model: PretrainingModel,
    batch: BatchPlan,
    world: World,
    unused: Sequence[str] = (),
    max_skipped_in_a_row: int = 40,
) -> TrainEngine:
    """Build a phase's optimizer and its engine.

    Args:
        phase: settings of the phase.
        model: the model, on its device.
        batch: how an update is split over ranks and micro batches.
        world: this rank.
        unused: names of the parameters that get no gradient from the training rows.
        max_skipped_in_a_row: consecutive updates that may overflow under fp16.
    """
    settings = phase.deepspeed
    groups = param_groups(model, settings.optimizer.weight_decay, unused)
    optimizer = Lamb(
        groups, **settings.optimizer.arguments, max_grad_norm=settings.optimizer_max_grad_norm
    )
    return TrainEngine(model, optimizer, settings.for_engine(batch), world, max_skipped_in_a_row)


def stream_spec(config: RunConfig, data: PhaseData, batch: BatchPlan, rank: int) -> StreamSpec:
    """Return everything that decides the training rows of one rank.

    Args:
        config: settings of the run.
        data: the phase's dataset.
        batch: how an update is split over ranks and micro batches.
        rank: the rank.
    """
    return StreamSpec(
        folder=data.folder,
        manifest=data.manifest,
        seed=config.seed,
        batch=batch,
        rank=rank,
        dynamic_masking=_dynamic_masking(config, data.manifest),
        cache_dir=config.data.cache_dir,
    )


def open_held_out(config: RunConfig, data: PhaseData) -> tuple[BlockReader, DynamicMasks | None]:
    """Open the held-out rows of a dataset, and the masks for rows that are not masked yet."""
    cache_dir, kind = config.data.cache_dir, _dynamic_masking(config, data.manifest)
    cache = ShardCache(cache_dir, data.folder, data.manifest) if cache_dir else None
    masks = held_out_masks(data.folder, data.manifest, kind) if kind else None
    return BlockReader(data.folder, data.manifest, "valid", cache), masks


def throughput_of(
    config: RunConfig, phase: PhaseConfig, world: World, device: torch.device
) -> Throughput:
    """Return what computes a rank's rates and memory in a phase.

    Args:
        config: settings of the run.
        phase: settings of the phase.
        world: this rank.
        device: the rank's device.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    peak = peak_tflop_per_s(name, phase.deepspeed.precision)
    flops = functools.partial(shape_of(config.model).flops, config.model)
    return Throughput(flops, world.world_size, peak, device)


def expected_flops(model: ModelConfig, phase: PhaseConfig, manifest: Manifest) -> float:
    """Return the FLOPs of all updates of a phase, from the lengths of its training rows.

    Args:
        model: shape of the model.
        phase: settings of the phase.
        manifest: manifest of the phase's dataset.
    """
    totals = manifest.totals("train")
    of_the_dataset = shape_of(model).flops(
        model,
        sum_of_lengths=totals.tokens,
        sum_of_squared_lengths=sum(n * s**2 for s, n in enumerate(totals.length_histogram)),
        num_predictions=totals.predictions,
        num_sequences=totals.rows,
    )
    num_rows = phase.total_steps * phase.deepspeed.train_batch_size
    return of_the_dataset / totals.rows * num_rows


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that a run's numbers depend on."""
    names = ("torch", "deepspeed", "numpy", "tokenizers")
    found = {name: metadata.version(name) for name in names}
    return {"bert_ds": __version__, "python": platform.python_version(), **found}


def _dynamic_masking(config: RunConfig, manifest: Manifest) -> MaskingKind | None:
    """Return how rows are masked as they are read; None if the dataset is masked already."""
    return (config.dynamic_masking or "token") if is_left_to_the_reader(manifest) else None


def _check_masking(config: RunConfig, folder: Path, manifest: Manifest) -> None:
    if config.dynamic_masking is not None and not is_left_to_the_reader(manifest):
        how = manifest.parameters.get("masking", "token")
        raise ConfigError(
            f"dynamic_masking is '{config.dynamic_masking}', but the rows of {folder} were masked "
            f"when they were prepared (--masking {how}). Leave dynamic_masking out to train with "
            "those masks, or prepare the dataset with --masking none"
        )


def _check_vocabulary(folder: Path, manifest: Manifest) -> None:
    path = folder / VOCABULARY_NAME
    if not path.is_file():
        raise DataError(f"{path} is missing; restore it or prepare the dataset again")
    found = sha256_file(path)
    if found != manifest.vocabulary.sha256:
        raise DataError(
            f"{path} has SHA-256 {found[:12]}..., its manifest says "
            f"{manifest.vocabulary.sha256[:12]}...: it is not the vocabulary that the shards were "
            "made with; restore it or prepare the dataset again"
        )


def _needs_held_out(config: RunConfig, phase: PhaseConfig) -> bool:
    return config.checkpoint.keep_best or phase.target_accuracy is not None


def _check_fits(config: RunConfig, phase: PhaseConfig, folder: Path, manifest: Manifest) -> None:
    rules: Sequence[tuple[bool, str]] = (
        (
            manifest.vocabulary.size == config.model.vocab_size,
            f"its vocabulary has {manifest.vocabulary.size} pieces and model.vocab_size is "
            f"{config.model.vocab_size}; use --set model.vocab_size={manifest.vocabulary.size} or "
            "prepare it with the other vocabulary",
        ),
        (
            manifest.sequence_length == phase.sequence_length,
            f"its rows have up to {manifest.sequence_length} tokens and {phase.name} is set to "
            f"{phase.sequence_length}",
        ),
        (
            manifest.max_predictions_per_seq <= phase.max_predictions_per_seq,
            f"its rows have up to {manifest.max_predictions_per_seq} masked positions and "
            f"{phase.name}.max_predictions_per_seq is {phase.max_predictions_per_seq}",
        ),
        (manifest.totals("train").rows > 0, "it has no training rows"),
        (
            manifest.totals("valid").rows > 0 or not _needs_held_out(config, phase),
            f"it has no held-out rows, and {phase.name}.target_accuracy or "
            "checkpoint.keep_best asks for evaluations; prepare it with --valid-fraction above 0",
        ),
    )
    for holds, complaint in rules:
        if not holds:
            raise DataError(f"dataset {folder} does not fit the recipe: {complaint}")
