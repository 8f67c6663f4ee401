"""What of a DeepSpeed JSON is accepted, refused, and passed on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bert_ds.config.deepspeed import read_deepspeed
from bert_ds.config.loading import load_run_config
from bert_ds.config.recipe import RunConfig
from bert_ds.engine import import_deepspeed
from bert_ds.errors import ConfigError
from tests.support.recipes import tiny_deepspeed, write_recipe

RECIPES = sorted(p.parent for p in Path(__file__).parents[4].glob("ds_configs/*/recipe.json"))


def check(tmp_path: Path, **changes: Any) -> RunConfig:
    return load_run_config(write_recipe(tmp_path, deepspeed={**tiny_deepspeed(), **changes}))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"gradient_cliping": 1.0}, "unknown DeepSpeed key 'gradient_cliping'; did you mean"),
        ({"scheduler": {}}, "stands in recipe.json"),
        ({"torch_autocast": {}}, "refused"),
        ({"gradient_clipping": None}, "gradient_clipping must be set"),
        ({"gradient_clipping": -1}, "gradient_clipping must be set"),
        ({"gradient_clipping": float("nan")}, "gradient_clipping must be set"),
        ({"train_batch_size": None}, "train_batch_size must be a positive integer in the"),
        ({"train_micro_batch_size_per_gpu": 0}, "must be a positive integer"),
        ({"train_batch_size": 1.5}, "must be a positive integer in the DeepSpeed JSON, it is 1.5"),
        ({"train_batch_size": "8"}, "must be a positive integer"),
        ({"train_batch_size": True}, "must be a positive integer"),
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


def test_the_values_are_typed_and_the_json_stays_as_it_is(tmp_path: Path) -> None:
    zero = {"stage": 2, "reduce_bucket_size": 5e7}
    found = check(tmp_path, bf16={"enabled": True}, zero_optimization=zero).phases[0].deepspeed
    assert (found.train_batch_size, found.micro_batch_size) == (8, 4)
    assert (found.zero_stage, found.precision, found.gradient_clipping) == (2, "bf16", 1.0)
    assert found.optimizer.lr == 0.01
    assert found.raw == {**tiny_deepspeed(), "bf16": {"enabled": True}, "zero_optimization": zero}


def test_a_disabled_half_precision_is_fp32(tmp_path: Path) -> None:
    assert check(tmp_path, fp16={"enabled": False}).phases[0].deepspeed.precision == "fp32"


def test_a_missing_zero_section_is_stage_0() -> None:
    raw = {key: value for key, value in tiny_deepspeed().items() if key != "zero_optimization"}
    assert read_deepspeed(raw, "p").zero_stage == 0


def test_no_run_config_exists_that_would_be_refused(tmp_path: Path) -> None:
    """Whatever builds one: a recipe, a run folder's config.json, a changed copy."""
    config = check(tmp_path)
    assert RunConfig.model_validate(config.model_dump(mode="json")) == config
    tree = config.model_dump(mode="json")
    tree["phases"][0]["deepspeed"]["fp16"] = {"enabled": True}
    with pytest.raises(ConfigError, match="phase1: fp16 at ZeRO stage 0 trains wrongly"):
        RunConfig.model_validate(tree)
    with pytest.raises(ConfigError, match="phase1: unknown DeepSpeed key 'train_batch_siz'"):
        config.phases[0].with_deepspeed(train_batch_siz=8)
    compiled = ["execution.compile=true", "deepspeed.zero_optimization.stage=3"]
    with pytest.raises(ConfigError, match="compile does not go with ZeRO stage 3"):
        load_run_config(tmp_path, compiled)


def test_deepspeed_is_given_the_accumulation_and_neither_optimizer_nor_clipping(
    tmp_path: Path,
) -> None:
    config = load_run_config(write_recipe(tmp_path))
    phase = config.phases[0]
    resolved = phase.deepspeed.for_engine(phase.plan_batch(1))
    assert resolved["gradient_accumulation_steps"] == 2
    assert "optimizer" not in resolved
    assert resolved["gradient_clipping"] == 0.0
    assert phase.deepspeed.raw["gradient_clipping"] == 1.0


def test_under_zero_the_engine_clips_and_takes_an_optimizer_of_ours(tmp_path: Path) -> None:
    config = load_run_config(write_recipe(tmp_path), ["deepspeed.zero_optimization.stage=2"])
    phase = config.phases[0]
    resolved = phase.deepspeed.for_engine(phase.plan_batch(1))
    assert resolved["gradient_clipping"] == 1.0
    assert resolved["zero_allow_untested_optimizer"] is True
    assert resolved["zero_force_ds_cpu_optimizer"] is False


@pytest.mark.parametrize("folder", RECIPES, ids=lambda folder: folder.name)
def test_deepspeeds_own_parser_accepts_every_shipped_json_as_it_stands(folder: Path) -> None:
    deepspeed = import_deepspeed()
    for phase in load_run_config(folder).phases:
        parsed = deepspeed.DeepSpeedConfig(dict(phase.deepspeed.raw))
        assert parsed.train_batch_size == phase.deepspeed.train_batch_size
        assert parsed.gradient_clipping == phase.deepspeed.gradient_clipping
        assert parsed.zero_optimization_stage == phase.deepspeed.zero_stage
        assert (
            parsed.train_batch_size
            == parsed.train_micro_batch_size_per_gpu * parsed.gradient_accumulation_steps
        )
