"""The settings of a pretraining run: what a recipe folder holds, as frozen, validated models.

A recipe is `recipe.json` plus one plain DeepSpeed JSON a phase. What DeepSpeed knows (batch sizes,
optimizer and its peak learning rate, precision, ZeRO, clipping) stands in the DeepSpeed JSON and
nowhere else; everything else (model, steps, schedule, seed, checkpoints) stands in `recipe.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import (
    AliasChoices,
    Field,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from bert_ds.config.base import FrozenConfig
from bert_ds.config.batch import BatchPlan, plan_batch
from bert_ds.config.deepspeed import DeepSpeedConfig, read_deepspeed
from bert_ds.config.model import ModelConfig
from bert_ds.config.schedule import ScheduleConfig
from bert_ds.objectives import PRETRAINING


class PhaseConfig(FrozenConfig):
    """One stretch of training at one sequence length."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
    """Name in logs, metrics and checkpoint folders."""
    sequence_length: int = Field(gt=3)
    """Longest row in tokens; rows are read from DATA/seq<sequence_length>."""
    max_predictions_per_seq: int = Field(gt=0)
    """Most masked positions in a row; must cover what the dataset was made with."""
    total_steps: int = Field(gt=0)
    """Updates to apply in this phase."""
    target_accuracy: float | None = Field(
        default=None,
        gt=0.0,
        le=1.0,
        validation_alias=AliasChoices("target_accuracy", f"target_{PRETRAINING.leading.accuracy}"),
    )
    """Held-out accuracy of the objectives' leading term (of the masked tokens: also to be set as
    target_mlm_accuracy) at which the phase ends before its last update (MLPerf's BERT ends at
    0.72); checked every evaluation.every_steps. null trains all updates."""
    schedule: ScheduleConfig
    """Learning rate over the phase; its peak is optimizer.params.lr of the DeepSpeed JSON."""
    moments: Literal["carry", "reset"] = "carry"
    """Whether the optimizer's moments of the former phase are kept; the step count restarts."""
    deepspeed: DeepSpeedConfig
    """The phase's DeepSpeed configuration; plain and complete in the recipe and the run folder."""

    @field_validator("deepspeed", mode="plain")
    @classmethod
    def _read_deepspeed(cls, value: Any, info: ValidationInfo) -> DeepSpeedConfig:
        if not isinstance(value, (dict, DeepSpeedConfig)):
            raise ValueError("must be the object of a DeepSpeed JSON, or the name of its file")
        raw = value.raw if isinstance(value, DeepSpeedConfig) else value
        return read_deepspeed(raw, info.data.get("name", "a phase"))

    @field_serializer("deepspeed")
    def _write_deepspeed(self, value: DeepSpeedConfig) -> dict[str, Any]:
        return value.raw

    def plan_batch(self, world_size: int) -> BatchPlan:
        """Split an update over ranks and micro batches.

        Raises:
            ConfigError: the batch sizes do not divide.
        """
        sizes = self.deepspeed
        return plan_batch(
            sizes.train_batch_size,
            sizes.micro_batch_size,
            world_size,
            self.name,
            sizes.gradient_accumulation_steps,
        )

    def with_deepspeed(self, **changes: Any) -> PhaseConfig:
        """Return this phase with other values of top-level keys in its DeepSpeed JSON, checked."""
        raw = {**self.deepspeed.raw, **changes}
        return self.model_copy(update={"deepspeed": read_deepspeed(raw, self.name)})


class CheckpointConfig(FrozenConfig):
    """When checkpoints are written and how many stay."""

    every_steps: int = Field(default=500, gt=0)
    """Updates between checkpoints; one is always written at the end of a phase."""
    keep_last: int = Field(default=2, gt=0)
    """Newest checkpoints that are kept; the end of each phase is kept besides."""
    keep_every_steps: int | None = Field(default=None, gt=0)
    """Checkpoints at multiples of this number of updates are kept besides; null adds none."""
    keep_best: bool = False
    """Whether each evaluation during training whose loss of the leading term (of the masked tokens)
    is the lowest of its phase so far writes a checkpoint, which is kept until a better one."""


class EvaluationConfig(FrozenConfig):
    """Evaluation on the held-out shards: at the end of the run and, if asked for, during it."""

    every_steps: int | None = Field(default=None, gt=0)
    """Updates between evaluations during training; null evaluates at the end alone."""
    micro_batch_size: int = Field(default=32, gt=0)
    """Sequences per rank per forward."""
    max_sequences: int | None = Field(default=None, gt=0)
    """Rows of the held-out split to use, from its start; null for all of them."""


class DivergenceConfig(FrozenConfig):
    """What a run does when the loss is not a number, or the gradients overflow repeatedly."""

    action: Literal["stop", "rollback"] = "stop"
    """`stop` ends the run; `rollback` resumes from an earlier checkpoint of the phase and leaves
    out the rows since. It is logged, and listed in summary.json."""
    checkpoints_back: int = Field(default=1, gt=0)
    """Checkpoints to go back; where fewer are kept, the oldest of them is used."""
    max_rollbacks: int = Field(default=3, ge=0)
    """Rollbacks in the whole run, after which a divergence ends it."""


class LoggingConfig(FrozenConfig):
    """How often the run reports. `metrics.jsonl` holds every update in any case."""

    every_steps: int = Field(default=10, gt=0)
    """Updates between reads of the device, writes of metrics and progress lines."""
    norms_by_layer: bool = False
    """Whether gradient norms (clipped) and update norms are logged by layer."""


class DataConfig(FrozenConfig):
    """How rows come to a rank. These settings change speed alone, never the batches."""

    cache_dir: Path | None = None
    """Folder on a local disk of each host that shards are copied to when they are first read, for
    datasets on slow file systems. null reads them where they are."""


BatchLayout = Literal["unpadded", "packed", "padded"]
"""How the rows of a micro batch lie: end to end; end to end, as many as there is room for; or each
padded to the longest."""


class ExecutionConfig(FrozenConfig):
    """How a step is computed.

    These settings change speed and memory; without dropout, results differ by rounding alone. With
    it, `batch_layout` and `compile` may drop other elements.
    """

    batch_layout: BatchLayout = "unpadded"
    """`unpadded` does no work on padding. `packed` does none either, and fills every micro batch up
    to train_micro_batch_size_per_gpu x sequence_length tokens: where rows are short that takes
    fewer micro batches, all of one shape, in the memory of full rows. `padded` is the plain
    reference."""
    recompute_every: int = Field(default=0, ge=0)
    """Layers per group whose activations are computed again in the backward pass, from the input of
    the group (activation checkpointing, Chen et al. 2016, arXiv:1604.06174); 0 keeps all
    activations. It takes less memory, for up to a third more work."""
    compile: bool = False
    """Whether layers are compiled (torch.compile), which fuses bias, GELU, dropout, residual and
    LayerNorm; the first updates take minutes. For GPUs: on CPUs it gains nothing."""
    layer_norm: Literal["torch", "apex"] = "torch"
    """Whose LayerNorm: torch's, or NVIDIA apex's FusedLayerNorm where that is installed. `bert-ds
    bench step` measures which is faster on a GPU."""
    deterministic: bool = False
    """Whether a GPU must give the same bits every time. Some of torch's operations do so only on
    request, more slowly; CPUs always do."""

    @model_validator(mode="after")
    def _compiled_layers_have_torchs_layer_norm(self) -> ExecutionConfig:
        if self.compile and self.layer_norm != "torch":
            raise ValueError("compile fuses torch's LayerNorm itself; leave layer_norm out with it")
        return self


class RunConfig(FrozenConfig):
    """Everything that decides a run, resolved: recipe, overrides and defaults."""

    recipe: str = Field(min_length=1)
    """Name of the recipe."""
    seed: int = Field(default=42, ge=0)
    """Keys initial weights, row order, dropout and dynamic masks."""
    model: ModelConfig
    """Shape of the network."""
    init_from: Path | None = None
    """Hugging Face folder of a BERT whose weights training starts from; null starts from random
    ones. Shape and vocabulary must be the recipe's; heads that it lacks start at random. In a
    recipe.json the path is relative to the recipe's folder."""
    phases: tuple[PhaseConfig, ...] = Field(min_length=1)
    """The stretches of training, in order."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When checkpoints are written and which are kept."""
    max_skipped_in_a_row: int = Field(default=40, gt=0)
    """Updates that may overflow one after the other under fp16 before the run ends. A scale of
    2^32 needs 32 of them to come down to 1."""
    divergence: DivergenceConfig = DivergenceConfig()
    """What a run does when it diverges."""
    watchdog_s: float = Field(default=1800.0, ge=0.0)
    """Seconds without progress (a step, an evaluation's batch, a checkpoint) after which a rank
    logs where it stands and ends, so that a run never hangs. With 0, only torch's own limit on
    collectives of half an hour ends it."""
    rendezvous_timeout_s: float = Field(default=60.0, gt=0.0)
    """Seconds at the start without a further rank, after which the present ranks name the missing
    ones and end. Raise it for hosts that start at very different times."""
    heartbeat_s: float = Field(default=30.0, ge=0.0)
    """Seconds without a heartbeat from a rank after which the others name it and end: its process
    was killed, or its host or the network to it is down; 0 for never."""
    dynamic_masking: Literal["token", "whole_word"] | None = None
    """What is masked, drawn for every epoch, in datasets prepared with `--masking none`; null is
    "token". For a dataset that is masked already it is an error: leave it out (null) there."""
    data: DataConfig = DataConfig()
    """How rows are read."""
    execution: ExecutionConfig = ExecutionConfig()
    """How steps are computed."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Evaluation on held-out rows."""
    logging: LoggingConfig = LoggingConfig()
    """How often the run reports."""

    @field_validator("init_from")
    @classmethod
    def _init_from_is_absolute(cls, init_from: Path | None) -> Path | None:
        return init_from.absolute() if init_from else None

    @field_validator("phases")
    @classmethod
    def _phase_names_differ(cls, phases: tuple[PhaseConfig, ...]) -> tuple[PhaseConfig, ...]:
        names = [phase.name for phase in phases]
        if len(set(names)) != len(names):
            raise ValueError(f"phase names must differ; they are {', '.join(names)}")
        return phases

    @model_validator(mode="after")
    def _settings_that_need_evaluations_have_them(self) -> RunConfig:
        asking = [
            f"{phase.name}.target_accuracy"
            for phase in self.phases
            if phase.target_accuracy is not None
        ]
        asking += ["checkpoint.keep_best"] if self.checkpoint.keep_best else []
        if asking and self.evaluation.every_steps is None:
            raise ValueError(
                f"{asking[0]} needs evaluations during training: set evaluation.every_steps"
            )
        return self

    @model_validator(mode="after")
    def _compiled_layers_keep_their_parameters(self) -> RunConfig:
        for phase in self.phases:
            if self.execution.compile and phase.deepspeed.zero_stage == 3:
                raise ValueError(
                    f"{phase.name}: execution.compile does not go with ZeRO stage 3, whose "
                    "parameters come and go within a layer; leave it out or take stage 2"
                )
        return self

    @model_validator(mode="after")
    def _phases_fit_the_model(self) -> RunConfig:
        for phase in self.phases:
            if phase.sequence_length > self.model.max_position_embeddings:
                raise ValueError(
                    f"{phase.name}.sequence_length ({phase.sequence_length}) must not exceed "
                    f"model.max_position_embeddings ({self.model.max_position_embeddings})"
                )
        return self
