"""Recipes: what loads, what is refused, and what the refusal says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bert_ds.config.loading import find_recipe, load_run_config
from bert_ds.errors import ConfigError
from tests.support.recipes import tiny_recipe, write_recipe

RECIPES = sorted(Path(__file__).parents[4].glob("ds_configs/*/recipe.json"))


def changed(tmp_path: Path, **changes: Any) -> Path:
    return write_recipe(tmp_path / "recipe", {**tiny_recipe(), **changes})


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.parent.name)
def test_every_shipped_recipe_loads_and_is_checked(path: Path) -> None:
    config = load_run_config(path.parent)
    assert config.recipe == path.parent.name
    assert [phase.sequence_length for phase in config.phases] == [128, 512]


def test_bert_large_has_nvidias_numbers() -> None:
    config = load_run_config(RECIPES[0].parents[1] / "bert-large")
    first, second = config.phases
    assert (first.total_steps, second.total_steps) == (7038, 1563)
    assert [p.schedule.warmup_proportion for p in config.phases] == [0.2843, 0.128]
    assert [p.schedule.kind for p in config.phases] == ["nvidia_polynomial"] * 2
    assert [p.deepspeed.train_batch_size for p in config.phases] == [65536, 32768]
    assert [p.deepspeed.optimizer.lr for p in config.phases] == [6e-3, 4e-3]
    assert [p.max_predictions_per_seq for p in config.phases] == [20, 80]
    assert all(p.deepspeed.precision == "fp16" for p in config.phases)
    assert (config.model.hidden_size, config.model.num_hidden_layers) == (1024, 24)


def test_overrides_take_precedence_and_keep_their_types(tmp_path: Path) -> None:
    config = load_run_config(
        write_recipe(tmp_path),
        [
            "model.hidden_dropout_prob=0",
            "phases.0.total_steps=20",
            "deepspeed.zero_optimization.stage=1",
            "phases.1.deepspeed.bf16.enabled=true",
            "phases.1.name=long",
        ],
    )
    assert config.model.hidden_dropout_prob == 0.0
    assert [phase.total_steps for phase in config.phases] == [20, 4]
    assert [p.deepspeed.zero_stage for p in config.phases] == [1, 1]
    assert "bf16" not in config.phases[0].deepspeed.raw
    assert config.phases[1].deepspeed.raw["bf16"] == {"enabled": True}
    assert config.phases[1].name == "long"


def test_a_deepspeed_override_of_one_phase_leaves_the_other_alone(tmp_path: Path) -> None:
    recipe = tiny_recipe()
    for phase in recipe["phases"]:
        phase["deepspeed"] = "shared.json"
    config = load_run_config(
        write_recipe(tmp_path, recipe), ["phases.1.deepspeed.zero_optimization.stage=2"]
    )
    assert [p.deepspeed.zero_stage for p in config.phases] == [0, 2]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.hiden_size=3", "unknown key 'model.hiden_size'; did you mean 'hidden_size'?"),
        ("sed=3", "unknown key 'sed'; did you mean 'seed'?"),
        ("meeting_s=9", "'meeting_s' has been renamed; write 'rendezvous_timeout_s'"),
        ("phases.0.totalsteps=3", "did you mean 'total_steps'?"),
        ("phases.0.schedule.warmup=0.1", "did you mean 'warmup_proportion'?"),
        ("phases.\u00b2.total_steps=3", "must be an index from 0 to 1 of phases"),
        ("phases.7.total_steps=3", "'7' must be an index from 0 to 1 of phases"),
        ("model.hidden_size.x=3", "model.hidden_size is a plain value, it has no 'x'"),
        ("model.hidden_size", "--set needs key=value"),
        ("=3", "--set needs key=value"),
        ("model.hidden_size=17", "hidden_size (17) must be a multiple of num_attention_heads (2)"),
        ("model.hidden_dropout_prob=1.5", "'model.hidden_dropout_prob'"),
        ("phases.0.total_steps=0", "'phases.0.total_steps'"),
        ("phases.0.total_steps=many", "(it is 'many')"),
        ("phases.0.sequence_length=512", "must not exceed model.max_position_embeddings (64)"),
        ("phases.1.name=phase1", "phase names must differ; they are phase1, phase1"),
        ("phases.0.schedule.kind=cosine", "polynomial"),
        ("phases.0.deepspeed=5", "'phases.0.deepspeed'"),
        ("data.reader_processes=2", "'data.reader_processes' is gone: one thread reads"),
        ("data.reader_processes=0", "leave it out, and set data.cache_dir for slow file systems"),
    ],
)
def test_a_wrong_override_is_refused_with_the_way_out(
    tmp_path: Path, override: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run_config(write_recipe(tmp_path), [override])
    assert expected in str(caught.value)
    assert caught.value.exit_code == 2


def test_an_unknown_recipe_key_is_refused_with_the_nearest_known_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'checkpoints'; did you mean 'checkpoint'"):
        load_run_config(changed(tmp_path, checkpoints={}))


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    recipe = tiny_recipe()
    del recipe["phases"][1]["schedule"]
    with pytest.raises(ConfigError, match=r"'phases.1.schedule' is missing"):
        load_run_config(write_recipe(tmp_path, recipe))


def test_a_shipped_recipe_is_found_by_its_name_wherever_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_recipe(Path("bert-large")).samefile(RECIPES[0].parents[1] / "bert-large")
    assert load_run_config(Path("bert-large")).recipe == "bert-large"
    write_recipe(tmp_path / "bert-large")  # a folder of that name is meant where there is one
    assert find_recipe(Path("bert-large")) == Path("bert-large")
    assert load_run_config(Path("bert-large")).model.hidden_size < 1024


@pytest.mark.parametrize("recipe", ["nowhere", "ds_configs/bert-base", "../ds_configs/bert-base"])
def test_an_unknown_recipe_is_refused_with_the_names_of_the_shipped_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = "one of bert-base, bert-large, bert-tiny-demo$"
    with pytest.raises(ConfigError, match=rf"no recipe folder at .*{recipe}, .*; .*, or {shipped}"):
        find_recipe(Path(recipe))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    folder = write_recipe(tmp_path / "recipe")
    (folder / "phase2.json").unlink()
    with pytest.raises(ConfigError, match=r"cannot read .*phase2\.json"):
        load_run_config(folder)
    (folder / "phase2.json").write_text('{\n "train_batch_size": 8,,\n}')
    with pytest.raises(ConfigError, match=r"phase2\.json, line 2: not valid JSON"):
        load_run_config(folder)
    (folder / "phase2.json").write_text(json.dumps([1]))
    with pytest.raises(ConfigError, match=r"must hold a JSON object, not list"):
        load_run_config(folder)
    (folder / "recipe.json").write_bytes(b'{"\xff": 1}')
    with pytest.raises(ConfigError, match=r"not UTF-8"):
        load_run_config(folder)
