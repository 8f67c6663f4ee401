"""The run folder: its files, which run it belongs to, and the lock against a second writer.

config.json         the resolved settings, and how the run was started
vocab.txt           the vocabulary (vocab.json: its settings), so that the model can be used alone
metrics.jsonl       one row per update
tensorboard/        the same as scalars
evaluations.jsonl   one row per evaluation during training
stop                a file that asks the run to save its state and end; a new start removes it
checkpoints/        see `bert_ds.checkpoint.store`
summary.json        the results so far
"""

from __future__ import annotations

import fcntl
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from bert_ds.config.former import settings_of_today
from bert_ds.config.loading import validate_run_config
from bert_ds.config.recipe import RunConfig
from bert_ds.errors import CheckpointError
from bert_ds.files import read_json_object, write_atomically

log = logging.getLogger(__name__)

# Settings that may differ between two starts of one run: they change speed, memory or reports only.
_FREE_KEYS = {
    "checkpoint", "data", "divergence", "evaluation", "execution", "heartbeat_s", "logging",
    "rendezvous_timeout_s", "watchdog_s",
}  # fmt: skip
_FREE_DEEPSPEED_KEYS = {
    "activation_checkpointing", "aio", "comms_logger", "csv_monitor", "dump_state",
    "flops_profiler", "gradient_accumulation_steps", "memory_breakdown", "steps_per_print",
    "tensorboard", "train_micro_batch_size_per_gpu", "wall_clock_breakdown", "wandb",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "zero_optimization",
}  # fmt: skip


class RunFolder:
    """Paths of a run and the reading and writing of its small files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: TextIO | None = None

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """File with one row per update."""
        return self.path / "metrics.jsonl"

    @property
    def evaluations(self) -> Path:
        """File with one row per evaluation during training."""
        return self.path / "evaluations.jsonl"

    def evaluations_of(self, phase: str) -> list[dict[str, Any]]:
        """Return the evaluations of a phase so far, in order."""
        if not self.evaluations.exists():
            return []
        lines = self.evaluations.read_text(encoding="utf-8").splitlines()
        return [row for row in map(json.loads, lines) if row["phase"] == phase]

    @property
    def vocabulary(self) -> Path:
        """The vocabulary that the model was trained with."""
        return self.path / "vocab.txt"

    @property
    def summary(self) -> Path:
        """File with the results so far."""
        return self.path / "summary.json"

    @property
    def stop_file(self) -> Path:
        """File whose appearance asks the run to save its state and end."""
        return self.path / "stop"

    def claim(self) -> None:
        """Create the folder and lock it until this process ends.

        Raises:
            CheckpointError: it cannot be created or written, or another run holds its lock.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("w")
        except OSError as err:
            raise CheckpointError(
                f"cannot write to the run folder {self.path}: {err.strerror or err}; choose "
                "another --output-dir or correct its permissions"
            ) from err
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            self.release()
            raise CheckpointError(
                f"another run is writing to {self.path}; wait until it has ended or choose another "
                "--output-dir"
            ) from err
        except OSError as err:  # some shared file systems have no locks
            log.warning("%s: no lock (%s); start no second run on it", self.path, err.strerror)

    def release(self) -> None:
        """Unlock the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def check_belongs_to(
        self, config: RunConfig, is_fresh_start: bool, others_may_differ: bool = False
    ) -> None:
        """Check that the folder is new or holds the run of these settings; write nothing.

        Args:
            config: resolved settings of the run.
            is_fresh_start: whether the caller asked for a run from the beginning.
            others_may_differ: whether differences are only logged.

        Raises:
            CheckpointError: it is the folder of a run with other settings, or a fresh start was
                asked for and it holds a run.
        """
        former = self.read_config()
        if former is None:
            return
        if is_fresh_start:
            raise CheckpointError(
                f"--resume never: {self.path} already holds a run; choose another --output-dir "
                "or remove it"
            )
        differences = list(setting_differences(former, config))
        listed = "; ".join(differences[:5])
        listed += f"; and {len(differences) - 5} more" if len(differences) > 5 else ""
        if differences and others_may_differ:
            log.warning("continuing with other settings (--override settings): %s", listed)
        elif differences:
            raise CheckpointError(
                f"{self.path} is the folder of another run: {listed}. Use its settings to resume "
                "it, or choose another --output-dir; --override settings continues with these"
            )

    def write_config(self, config: RunConfig, origin: dict[str, Any]) -> None:
        """Write config.json: the resolved settings, and how the run was started."""
        content = {"config": config.model_dump(mode="json"), **origin}
        write_atomically(self.path / "config.json", json.dumps(content, indent=2) + "\n")

    def read_config(self) -> RunConfig | None:
        """Return the settings that the run was last started with; None in a new folder.

        Raises:
            CheckpointError: config.json exists and cannot be used.
        """
        path = self.path / "config.json"
        if not path.exists():
            return None
        content = read_json_object(path, CheckpointError)
        tree = settings_of_today(content.get("config", {}))
        return validate_run_config(tree, where=str(path))

    def read_summary(self) -> dict[str, Any]:
        """Return the content of `summary.json`; empty if there is no such file."""
        return read_json_object(self.summary, CheckpointError) if self.summary.exists() else {}

    def update_summary(self, **changes: Any) -> None:
        """Replace some entries of `summary.json`."""
        content = {**self.read_summary(), **changes}
        write_atomically(self.summary, json.dumps(content, indent=2) + "\n")

    def keep_vocabulary(self, source: Path, settings: dict[str, Any]) -> None:
        """Copy the dataset's vocabulary and its settings (`lowercase`, `strip_accents`)."""
        write_atomically(self.vocabulary, source.read_text(encoding="utf-8"))
        write_atomically(self.path / "vocab.json", json.dumps(settings, indent=2) + "\n")

    def read_vocabulary_settings(self) -> dict[str, Any]:
        """Return the settings that `keep_vocabulary` wrote.

        Raises:
            CheckpointError: the run has not got far enough to have a vocabulary.
        """
        return read_json_object(self.path / "vocab.json", CheckpointError)


def open_run(path: Path) -> tuple[RunFolder, RunConfig]:
    """Return an existing run folder and its settings.

    Raises:
        CheckpointError: there is no run there.
    """
    folder = RunFolder(path)
    config = folder.read_config()
    if config is None:
        raise CheckpointError(
            f"{path} is no run folder: it has no config.json; give the folder that "
            "`bert-ds pretrain --output-dir` was given"
        )
    return folder, config


def setting_differences(former: RunConfig, present: RunConfig) -> Iterator[str]:
    """Yield a text for each setting that changes the result and differs between two starts."""
    yield from _differences(_binding(former), _binding(present), "")


def _binding(config: RunConfig) -> dict[str, Any]:
    tree = {k: v for k, v in config.model_dump(mode="json").items() if k not in _FREE_KEYS}
    for phase in tree["phases"]:
        phase["deepspeed"] = {
            k: v for k, v in phase["deepspeed"].items() if k not in _FREE_DEEPSPEED_KEYS
        }
    return tree


def _differences(former: Any, present: Any, path: str) -> Iterator[str]:
    if isinstance(former, dict) and isinstance(present, dict):
        for key in sorted(former.keys() | present.keys()):
            yield from _differences(former.get(key), present.get(key), f"{path}.{key}".strip("."))
    elif isinstance(former, list) and isinstance(present, list) and len(former) == len(present):
        for index, (a, b) in enumerate(zip(former, present, strict=True)):
            yield from _differences(a, b, f"{path}.{index}")
    elif former != present:
        yield f"{path} was {former!r} there and is {present!r} now"
