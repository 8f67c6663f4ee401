"""A phase's DeepSpeed JSON: typed and checked for us, and completed for DeepSpeed.

DeepSpeed ignores top-level keys that it does not know, and accepts some combinations that train
wrongly. Both are errors here, when a recipe is loaded, before any process group starts. A JSON is
read once: everything else takes the values of `DeepSpeedConfig`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, Literal

from bert_ds.config.base import FrozenConfig
from bert_ds.config.batch import BatchPlan
from bert_ds.config.messages import nearest_known
from bert_ds.config.optimizer import LambConfig, lamb_config
from bert_ds.errors import ConfigError

Precision = Literal["fp32", "fp16", "bf16"]
ZeroStage = Literal[0, 1, 2, 3]

KNOWN_KEYS = frozenset(
    {
        "activation_checkpointing", "aio", "bf16", "checkpoint", "comms_logger",
        "communication_data_type", "csv_monitor", "data_types", "disable_allgather", "dump_state",
        "flops_profiler", "fp16", "gradient_accumulation_steps", "gradient_clipping",
        "gradient_predivide_factor", "memory_breakdown", "optimizer", "prescale_gradients",
        "sparse_gradients", "steps_per_print", "tensorboard", "train_batch_size",
        "train_micro_batch_size_per_gpu", "wall_clock_breakdown", "wandb",
        "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "zero_optimization",
    }
)  # fmt: skip

REFUSED_KEYS = {
    "scheduler": "the learning-rate schedule stands in recipe.json (phases.N.schedule)",
    "amp": "apex amp is not supported; use fp16 or bf16",
    "torch_autocast": "its gradients are clipped while still scaled; use fp16 or bf16",
    "data_efficiency": "the order of the data is decided by the dataset and the seed",
    "curriculum_learning": "the order of the data is decided by the dataset and the seed",
    "elasticity": "any world size that divides train_batch_size works without it",
    "autotuning": "it starts the script by itself with other settings",
    "compression_training": "it changes the model that is trained",
}


_SECTIONS = ("bf16", "fp16", "optimizer", "zero_optimization")
_HALF_PRECISIONS: tuple[Precision, ...] = ("fp16", "bf16")


class DeepSpeedConfig(FrozenConfig):
    """What a phase's DeepSpeed JSON asks for; made by `read_deepspeed`."""

    train_batch_size: int
    """Sequences per update, all ranks."""
    micro_batch_size: int
    """Sequences per rank per forward: train_micro_batch_size_per_gpu."""
    gradient_accumulation_steps: Any
    """As stated, or None: it is derived, and a stated value must be equal."""
    zero_stage: ZeroStage
    """ZeRO stage; 0 where the JSON names none."""
    precision: Precision
    """The precision that the model computes in."""
    gradient_clipping: float
    """Global gradient norm to clip to; 0 for none."""
    optimizer: LambConfig
    """Optimizer, with its peak learning rate."""
    raw: dict[str, Any]
    """The JSON itself, plain and complete. Nothing changes it."""

    @property
    def is_sharded(self) -> bool:
        """Whether ZeRO shards the optimizer's state; the engine then clips gradients itself."""
        return self.zero_stage > 0

    @property
    def optimizer_max_grad_norm(self) -> float:
        """The norm that our optimizer clips to: 0 where the engine does it."""
        return 0.0 if self.is_sharded else self.gradient_clipping

    def for_engine(self, batch: BatchPlan) -> dict[str, Any]:
        """Return the dictionary for `deepspeed.initialize`.

        It differs from the JSON in these places: the derived accumulation is filled in; the
        optimizer section is left out, since we build the optimizer from it; at stage 0 clipping is
        left to our LAMB, which needs the norm anyway and reports it; under ZeRO an optimizer that
        is not DeepSpeed's is allowed; DeepSpeed's own progress lines are off.
        """
        resolved = copy.deepcopy(self.raw)
        del resolved["optimizer"]
        resolved["gradient_accumulation_steps"] = batch.gradient_accumulation_steps
        resolved["steps_per_print"] = None
        if self.is_sharded:
            resolved["zero_allow_untested_optimizer"] = True
            resolved["zero_force_ds_cpu_optimizer"] = False
        else:
            resolved["gradient_clipping"] = 0.0
        return resolved


def read_deepspeed(raw: Mapping[str, Any], phase: str) -> DeepSpeedConfig:
    """Check a DeepSpeed JSON, without a GPU and without DeepSpeed.

    Args:
        raw: the JSON of a phase.
        phase: name of the phase, for messages.

    Raises:
        ConfigError: a key is unknown or refused, a needed one is missing, a value is out of range,
            or the combination of stage and precision would train wrongly.
    """
    _check_keys(raw, phase)
    if "optimizer" not in raw:
        raise ConfigError(
            f'{phase}: the DeepSpeed JSON needs an optimizer, such as {{"type": "Lamb", '
            '"params": {"lr": 6e-3}}'
        )
    try:
        optimizer = lamb_config(raw["optimizer"])
    except ConfigError as err:
        raise ConfigError(f"{phase}: {err}") from err
    stage, precision = _zero_stage(raw, phase), _precision(raw, phase)
    if stage == 0 and precision != "fp32":
        raise ConfigError(
            f"{phase}: {precision} at ZeRO stage 0 trains wrongly under DeepSpeed (0.19.8: "
            "fp16 never scales the loss, and both step the optimizer on zero gradients at start). "
            "Set deepspeed.zero_optimization.stage=1, also on one GPU"
        )
    return DeepSpeedConfig(
        train_batch_size=_positive_integer(raw, "train_batch_size", phase),
        micro_batch_size=_positive_integer(raw, "train_micro_batch_size_per_gpu", phase),
        gradient_accumulation_steps=raw.get("gradient_accumulation_steps"),
        zero_stage=stage,
        precision=precision,
        gradient_clipping=_gradient_clipping(raw, phase),
        optimizer=optimizer,
        raw=dict(raw),
    )


def _check_keys(raw: Mapping[str, Any], phase: str) -> None:
    """Refuse unknown keys, and sections that are no objects."""
    for key in raw:
        if key in REFUSED_KEYS:
            raise ConfigError(f"{phase}: DeepSpeed key '{key}' is refused: {REFUSED_KEYS[key]}")
        if key not in KNOWN_KEYS:
            hint = nearest_known(key, KNOWN_KEYS)
            raise ConfigError(f"{phase}: unknown DeepSpeed key '{key}'; {hint}")
    for key in _SECTIONS:
        if key in raw and not isinstance(raw[key], dict):
            raise ConfigError(
                f"{phase}: DeepSpeed's '{key}' must be an object, it is {raw[key]!r}; "
                f"for a switch write {key}.enabled=true"
            )


def _positive_integer(raw: Mapping[str, Any], key: str, phase: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ConfigError(
            f"{phase}: {key} must be a positive integer in the DeepSpeed JSON, it is {value!r}"
        )
    return value


def _gradient_clipping(raw: Mapping[str, Any], phase: str) -> float:
    value: Any = raw.get("gradient_clipping")
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise ConfigError(
            f"{phase}: gradient_clipping must be set in the DeepSpeed JSON (it is {value!r}): "
            "1.0 as published, 0 for none. DeepSpeed clips at 1.0 where it is left out"
        )
    return float(value)


def _precision(raw: Mapping[str, Any], phase: str) -> Precision:
    half = [name for name in _HALF_PRECISIONS if raw.get(name, {}).get("enabled", False)]
    if len(half) == 2:
        raise ConfigError(f"{phase}: fp16 and bf16 are both enabled; disable one of them")
    return half[0] if half else "fp32"


def _zero_stage(raw: Mapping[str, Any], phase: str) -> ZeroStage:
    stage = raw.get("zero_optimization", {}).get("stage", 0)
    if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
        raise ConfigError(f"{phase}: zero_optimization.stage must be 0, 1, 2 or 3, it is {stage!r}")
    known: ZeroStage = stage
    return known
