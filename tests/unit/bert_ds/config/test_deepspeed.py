"""What of a DeepSpeed JSON is accepted, refused, and passed on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bert_ds.config.batch import plan_batch
from bert_ds.config.deepspeed import (
    check_run,
    deepspeed_config,
    precision_of,
    zero_stage_of,
)
from bert_ds.config.loading import load_run_config
from bert_ds.engine import import_deepspeed
from bert_ds.errors import ConfigError
from tests.support.recipes import tiny_deepspeed, write_recipe

RECIPES = sorted(p.parent for p in Path(__file__).parents[4].glob("ds_configs/*/recipe.json"))


def check(tmp_path: Path, **changes: Any) -> None:
    config = load_run_config(write_recipe(tmp_path, deepspeed={**tiny_deepspeed(), **changes}))
    check_run(config)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"gradient_cliping": 1.0}, "unknown DeepSpeed key 'gradient_cliping'; did you mean"),
        ({"scheduler": {}}, "stands in recipe.json"),
        ({"torch_autocast": {}}, "refused"),
        ({"gradient_clipping": None}, "gradient_clipping must be set"),
        ({"gradient_clipping": -1}, "gradient_clipping must be set"),
        ({"gradient_clipping": float("nan")}, "gradient_clipping must be set"),
        ({"optimizer": None}, "'optimizer' must be an object, it is None"),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 1}}}, "must be one of Lamb, FusedLamb"),
        ({"optimizer": {"type": "Lamb", "params": {"lr": -1}}}, "optimizer.params: 'lr'"),
        ({"fp16": True}, "'fp16' must be an object, it is True; for a switch write fp16.enabled"),
        ({"zero_optimization": {"stage": 4}}, "must be 0, 1, 2 or 3, it is 4"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "both enabled"),
        ({"fp16": {"enabled": True}}, "fp16 at ZeRO stage 0 trains wrongly"),
        ({"bf16": {"enabled": True}}, "bf16 at ZeRO stage 0 trains wrongly"),
    ],
)
def test_what_would_train_wrongly_or_be_ignored_is_refused(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check(tmp_path, **changes)
    assert expected in str(caught.value)
    assert "phase1" in str(caught.value)


def test_a_disabled_half_precision_is_fp32(tmp_path: Path) -> None:
    check(tmp_path, fp16={"enabled": False})
    assert precision_of({"fp16": {"enabled": False}}, "p") == "fp32"
    assert precision_of({"bf16": {"enabled": True}}, "p") == "bf16"


def test_a_missing_zero_section_is_stage_0() -> None:
    assert zero_stage_of({}, "p") == 0


def test_deepspeed_is_given_the_accumulation_and_neither_optimizer_nor_clipping(
    tmp_path: Path,
) -> None:
    config = load_run_config(write_recipe(tmp_path))
    phase = config.phases[0]
    resolved = deepspeed_config(phase, plan_batch(phase.deepspeed, 1, "phase1"))
    assert resolved["gradient_accumulation_steps"] == 2
    assert "optimizer" not in resolved
    assert resolved["gradient_clipping"] == 0.0
    assert phase.deepspeed["gradient_clipping"] == 1.0


def test_under_zero_the_engine_clips_and_takes_an_optimizer_of_ours(tmp_path: Path) -> None:
    config = load_run_config(write_recipe(tmp_path), ["deepspeed.zero_optimization.stage=2"])
    check_run(config)
    phase = config.phases[0]
    resolved = deepspeed_config(phase, plan_batch(phase.deepspeed, 1, "phase1"))
    assert resolved["gradient_clipping"] == 1.0
    assert resolved["zero_allow_untested_optimizer"] is True
    assert resolved["zero_force_ds_cpu_optimizer"] is False


@pytest.mark.parametrize("folder", RECIPES, ids=lambda folder: folder.name)
def test_deepspeeds_own_parser_accepts_every_shipped_json_as_it_stands(folder: Path) -> None:
    deepspeed = import_deepspeed()
    for phase in load_run_config(folder).phases:
        parsed = deepspeed.DeepSpeedConfig(dict(phase.deepspeed))
        assert parsed.train_batch_size == phase.deepspeed["train_batch_size"]
        assert parsed.gradient_clipping == phase.deepspeed["gradient_clipping"]
        assert parsed.zero_optimization_stage == zero_stage_of(phase.deepspeed, phase.name)
        assert (
            parsed.train_batch_size
            == parsed.train_micro_batch_size_per_gpu * parsed.gradient_accumulation_steps
        )
