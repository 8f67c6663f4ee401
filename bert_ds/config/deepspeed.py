"""What a phase's DeepSpeed JSON asks for, checked, and the dictionary that DeepSpeed is given.

DeepSpeed ignores top-level keys that it does not know, and accepts some combinations that train
wrongly. Both are errors here, before any process group starts.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Literal

from bert_ds.config.batch import BatchPlan
from bert_ds.config.loading import nearest_known
from bert_ds.config.optimizer import lamb_config
from bert_ds.config.recipe import PhaseConfig, RunConfig
from bert_ds.errors import ConfigError

Precision = Literal["fp32", "fp16", "bf16"]

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


def precision_of(deepspeed: dict[str, Any], phase: str) -> Precision:
    """The precision that a DeepSpeed JSON asks for.

    Raises:
        ConfigError: fp16 and bf16 are both enabled.
    """
    half: list[Precision] = [
        name
        for name in _HALF_PRECISIONS
        if isinstance(deepspeed.get(name), dict) and deepspeed[name].get("enabled", False)
    ]
    if len(half) == 2:
        raise ConfigError(f"{phase}: fp16 and bf16 are both enabled; disable one of them")
    return half[0] if half else "fp32"


def zero_stage_of(deepspeed: dict[str, Any], phase: str) -> int:
    """The ZeRO stage that a DeepSpeed JSON asks for, 0 where it names none.

    Raises:
        ConfigError: the stage is not 0, 1, 2 or 3.
    """
    section = deepspeed.get("zero_optimization", {})
    stage = section.get("stage", 0) if isinstance(section, dict) else section
    if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
        raise ConfigError(f"{phase}: zero_optimization.stage must be 0, 1, 2 or 3, it is {stage!r}")
    return int(stage)


def check_phase(phase: PhaseConfig) -> None:
    """Check one phase's DeepSpeed JSON without a GPU and without DeepSpeed.

    Raises:
        ConfigError: a key is unknown or refused, a needed one is missing, a value is out of range,
            or the combination of stage and precision would train wrongly.
    """
    deepspeed, name = phase.deepspeed, phase.name
    for key in deepspeed:
        if key in REFUSED_KEYS:
            raise ConfigError(f"{name}: DeepSpeed key '{key}' is refused: {REFUSED_KEYS[key]}")
        if key not in KNOWN_KEYS:
            hint = nearest_known(key, KNOWN_KEYS)
            raise ConfigError(f"{name}: unknown DeepSpeed key '{key}'; {hint}")
    for key in _SECTIONS:
        if key in deepspeed and not isinstance(deepspeed[key], dict):
            raise ConfigError(
                f"{name}: DeepSpeed's '{key}' must be an object, it is {deepspeed[key]!r}; "
                f"for a switch write {key}.enabled=true"
            )
    clipping = deepspeed.get("gradient_clipping")
    if (
        not isinstance(clipping, (int, float))
        or isinstance(clipping, bool)
        or not 0 <= clipping < math.inf
    ):
        raise ConfigError(
            f"{name}: gradient_clipping must be set in the DeepSpeed JSON (it is {clipping!r}): "
            "1.0 as published, 0 for none. DeepSpeed clips at 1.0 where it is left out"
        )
    if "optimizer" not in deepspeed:
        raise ConfigError(
            f'{name}: the DeepSpeed JSON needs an optimizer, such as {{"type": "Lamb", '
            '"params": {"lr": 6e-3}}'
        )
    try:
        lamb_config(deepspeed["optimizer"])
    except ConfigError as err:
        raise ConfigError(f"{name}: {err}") from err
    _check_precision_and_stage(phase)


def check_run(config: RunConfig) -> None:
    """`check_phase` for every phase of a run, and what does not go with how it is computed.

    Raises:
        ConfigError: as `check_phase`; or layers are to be compiled under ZeRO stage 3.
    """
    for phase in config.phases:
        check_phase(phase)
        if config.execution.compile and zero_stage_of(phase.deepspeed, phase.name) == 3:
            raise ConfigError(
                f"{phase.name}: execution.compile does not go with ZeRO stage 3, whose parameters "
                "come and go within a layer; leave it out or take stage 2"
            )


def deepspeed_config(phase: PhaseConfig, batch: BatchPlan) -> dict[str, Any]:
    """The dictionary for `deepspeed.initialize`.

    Differs from the JSON in these places: the derived accumulation is filled in; the optimizer
    section is left out, since the optimizer is built by us from it; at stage 0 clipping is left to
    our LAMB, which needs the norm anyway and reports it; under ZeRO an optimizer that is not
    DeepSpeed's is allowed; DeepSpeed's own progress lines are off.
    """
    resolved = copy.deepcopy(phase.deepspeed)
    del resolved["optimizer"]
    resolved["gradient_accumulation_steps"] = batch.gradient_accumulation_steps
    resolved["steps_per_print"] = None
    if zero_stage_of(phase.deepspeed, phase.name) == 0:
        resolved["gradient_clipping"] = 0.0
    else:
        resolved["zero_allow_untested_optimizer"] = True
        resolved["zero_force_ds_cpu_optimizer"] = False
    return resolved


def _check_precision_and_stage(phase: PhaseConfig) -> None:
    """Refuse the combinations of ZeRO stage and precision that DeepSpeed trains wrongly."""
    stage = zero_stage_of(phase.deepspeed, phase.name)
    precision = precision_of(phase.deepspeed, phase.name)
    if stage == 0 and precision != "fp32":
        raise ConfigError(
            f"{phase.name}: {precision} at ZeRO stage 0 trains wrongly under DeepSpeed (0.19.8: "
            "fp16 never scales the loss, and both step the optimizer on zero gradients at start). "
            "Set deepspeed.zero_optimization.stage=1, also on one GPU"
        )


_SECTIONS = ("bf16", "fp16", "optimizer", "zero_optimization")
_HALF_PRECISIONS: tuple[Precision, ...] = ("fp16", "bf16")
