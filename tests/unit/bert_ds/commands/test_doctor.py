"""The arguments that `bert-ds doctor --hostfile` passes on to the hosts that it asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_ds.cli import build_parser
from bert_ds.commands.doctor import _arguments_for_hosts
from bert_ds.config.loading import find_recipe
from bert_ds.errors import ConfigError


def passed_on(*words: str) -> list[str]:
    return _arguments_for_hosts(
        build_parser().parse_args(["doctor", "--hostfile", "HOSTS", *words])
    )


def test_a_recipe_given_by_name_is_passed_on_as_the_folder_of_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flag, folder = passed_on("--recipe", "bert-large")
    assert flag == "--recipe"
    assert Path(folder) == find_recipe(Path("bert-large"))
    assert Path(folder).is_absolute()
    assert (Path(folder) / "recipe.json").is_file()


def test_a_recipe_folder_wins_over_a_shipped_recipe_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bert-large").mkdir()
    assert passed_on("--recipe", "bert-large") == ["--recipe", str(tmp_path / "bert-large")]


def test_paths_are_absolute_and_settings_come_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert passed_on("--data", "d", "--output-dir", "r", "--set", "seed=1", "data.cache_dir=x") == [
        "--data", str(tmp_path / "d"), "--output-dir", str(tmp_path / "r"),
        "--set", "seed=1", "data.cache_dir=x",
    ]  # fmt: skip
    assert passed_on() == []


def test_an_unknown_recipe_is_refused_before_any_host_is_asked() -> None:
    with pytest.raises(ConfigError, match="no shipped recipe of that name"):
        passed_on("--recipe", "bert-huge")
