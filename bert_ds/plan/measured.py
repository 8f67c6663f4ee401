"""Reads measurements of `bert-ds bench step --json FILE`, which replace an assumed MFU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bert_ds.config.recipe import PhaseConfig, RunConfig
from bert_ds.errors import ConfigError
from bert_ds.files import read_json_object

OURS = "bert_ds"
"""Name of the measurement of this package's model."""
_REMEDY = "measure this recipe with bert-ds bench step, or leave --measured out"


class _Measurement(BaseModel):
    name: str
    update_s: float = Field(gt=0)
    tflop_per_s: float = Field(gt=0)


class _File(BaseModel):
    """The fields of `bench.step.StepBench` that are needed here."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    model: dict[str, Any]
    phase: str
    sequence_length: int
    micro_batch_size: int
    accumulation: int = Field(gt=0)
    real_tokens_share: float
    precision: str
    device: str
    execution: dict[str, Any]
    measurements: tuple[_Measurement, ...] = Field(min_length=1)


@dataclass(frozen=True)
class MeasuredStep:
    """A phase's update as it was measured on one GPU."""

    path: Path
    """The file of the measurement."""
    phase: str
    """Name of the phase."""
    device: str
    """Name of the GPU in torch."""
    update_s: float
    """Duration of an update, seconds, including LAMB's step on all parameters."""
    accumulation: int
    """Micro batches of that update."""
    micro_batch_flops: float
    """Model FLOPs of a micro batch's real tokens."""
    real_tokens_share: float
    """Real tokens as a fraction of the tokens of full sequences."""


def read_measured(paths: list[Path], config: RunConfig) -> dict[str, MeasuredStep]:
    """Read the files and compare them with the recipe.

    Args:
        paths: files of one or more phases; the assumed MFU holds for the other phases.
        config: settings of the run to plan.

    Returns:
        Measured updates by the name of their phase.

    Raises:
        ConfigError: a file is not one of the bench, or was measured with other settings.
    """
    found: dict[str, MeasuredStep] = {}
    phases = {phase.name: phase for phase in config.phases}
    for path in paths:
        file = _read(path)
        if file.phase not in phases:
            raise ConfigError(
                f"--measured {path}: measured in phase '{file.phase}', and the recipe has "
                f"{', '.join(phases)}; {_REMEDY}"
            )
        if file.phase in found:
            raise ConfigError(
                f"--measured: {found[file.phase].path} and {path} are both of {file.phase}; "
                "leave one out"
            )
        _check(path, file, config, phases[file.phase])
        ours = next((each for each in file.measurements if each.name == OURS), None)
        if ours is None:
            raise ConfigError(f"--measured {path}: no measurement of {OURS} in it; {_REMEDY}")
        flops = ours.tflop_per_s * 1e12 * ours.update_s / file.accumulation
        found[file.phase] = MeasuredStep(
            path, file.phase, file.device, ours.update_s, file.accumulation, flops,
            file.real_tokens_share,
        )  # fmt: skip
    return found


def _read(path: Path) -> _File:
    tree = read_json_object(path, ConfigError)
    if "model" not in tree:
        raise ConfigError(
            f"--measured {path}: it does not name its model, as files of bert-ds bench step "
            f"--json do; {_REMEDY}"
        )
    try:
        return _File.model_validate(tree)
    except ValidationError as err:
        problems = "; ".join(
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in err.errors()
        )
        raise ConfigError(
            f"--measured {path} is not what bert-ds bench step --json writes: {problems}"
        ) from err


def _check(path: Path, file: _File, config: RunConfig, phase: PhaseConfig) -> None:
    """Refuse a measurement whose settings would make an update take another time."""
    pairs: list[tuple[str, Any, Any]] = [
        ("sequence_length", file.sequence_length, phase.sequence_length),
        (
            "train_micro_batch_size_per_gpu",
            file.micro_batch_size,
            phase.deepspeed.micro_batch_size,
        ),
        ("precision", file.precision, phase.deepspeed.precision),
    ]
    for section, measured, planned in (
        ("model", file.model, config.model.model_dump()),
        ("execution", file.execution, config.execution.model_dump()),
    ):
        pairs += [
            (f"{section}.{key}", measured.get(key), planned.get(key))
            for key in sorted(measured.keys() | planned.keys())
        ]
    apart = [
        f"{name} {ours!r} and not {theirs!r}" for name, ours, theirs in pairs if ours != theirs
    ]
    if apart:
        raise ConfigError(
            f"--measured {path}: measured with {', '.join(apart)} of {phase.name}; {_REMEDY}"
        )
