"""Whose a run folder is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert_ds.config.loading import load_run_config
from bert_ds.config.recipe import RunConfig
from bert_ds.errors import CheckpointError
from bert_ds.train import run_folder
from bert_ds.train.run_folder import RunFolder, open_run
from tests.support.recipes import write_recipe


def config_with(tmp_path: Path, *overrides: str) -> RunConfig:
    return load_run_config(write_recipe(tmp_path / "recipe"), list(overrides))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    claimed = RunFolder(tmp_path / "run")
    claimed.claim()
    yield claimed
    claimed.release()


def test_a_folder_belongs_to_the_settings_that_it_was_made_with(
    folder: RunFolder, tmp_path: Path
) -> None:
    config = config_with(tmp_path)
    folder.check_belongs_to(config, is_fresh_start=False)
    folder.write_config(config, {"command": "bert-ds pretrain"})
    folder.check_belongs_to(config, is_fresh_start=False)
    assert open_run(tmp_path / "run")[1] == config


def test_other_settings_are_refused_with_both_values(folder: RunFolder, tmp_path: Path) -> None:
    folder.write_config(config_with(tmp_path), {})
    other = config_with(
        tmp_path, "seed=7", "dynamic_masking=token", "phases.1.deepspeed.optimizer.params.lr=0.5"
    )
    with pytest.raises(CheckpointError) as caught:
        folder.check_belongs_to(other, is_fresh_start=False)
    assert "seed was 42 there and is 7 now" in str(caught.value)
    assert "dynamic_masking was None there and is 'token' now" in str(caught.value)
    assert "phases.1.deepspeed.optimizer.params.lr was 0.01 there and is 0.5" in str(caught.value)
    assert "choose another --output-dir" in str(caught.value)


def test_what_changes_speed_alone_may_differ(folder: RunFolder, tmp_path: Path) -> None:
    folder.write_config(config_with(tmp_path), {})
    other = config_with(
        tmp_path,
        "checkpoint.every_steps=77",
        "logging.every_steps=5",
        "data.cache_dir=/scratch/cache",
        "deepspeed.train_micro_batch_size_per_gpu=2",
        "deepspeed.zero_optimization.stage=2",
    )
    folder.check_belongs_to(other, is_fresh_start=False)


@pytest.mark.parametrize("reader_processes", [0, 4])
def test_a_setting_of_earlier_versions_does_not_keep_a_run_from_being_read(
    folder: RunFolder, tmp_path: Path, reader_processes: int
) -> None:
    config = config_with(tmp_path, "data.cache_dir=/scratch/cache")
    folder.write_config(config, {})
    path = folder.path / "config.json"
    content = json.loads(path.read_text())
    content["config"]["data"]["reader_processes"] = reader_processes
    path.write_text(json.dumps(content))
    assert folder.read_config() == config


def test_a_run_is_read_that_began_under_a_former_name_of_a_setting(
    folder: RunFolder, tmp_path: Path
) -> None:
    config = config_with(tmp_path, "rendezvous_timeout_s=90")
    folder.write_config(config, {})
    path = folder.path / "config.json"
    content = json.loads(path.read_text())
    content["config"]["meeting_s"] = content["config"].pop("rendezvous_timeout_s")
    path.write_text(json.dumps(content))
    assert folder.read_config() == config


def test_a_fresh_start_in_a_used_folder_is_refused(folder: RunFolder, tmp_path: Path) -> None:
    config = config_with(tmp_path)
    folder.check_belongs_to(config, is_fresh_start=True)
    folder.write_config(config, {})
    with pytest.raises(CheckpointError, match=r"--resume never: .* already holds a run"):
        folder.check_belongs_to(config, is_fresh_start=True)


def test_two_runs_cannot_write_to_one_folder(folder: RunFolder) -> None:
    second = RunFolder(folder.path)
    with pytest.raises(CheckpointError, match=r"another run is writing"):
        second.claim()
    folder.release()
    second.claim()
    second.release()


def test_a_file_system_without_locks_is_said_and_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(*arguments: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(run_folder.fcntl, "flock", no_locks)
    folder = RunFolder(tmp_path / "run")
    folder.claim()
    folder.release()
    assert "no lock (Function not implemented)" in caplog.text


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write to the run folder .*file/run"):
        RunFolder(tmp_path / "file" / "run").claim()


def test_a_folder_that_is_no_run_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no run folder: it has no config.json"):
        open_run(tmp_path)


def test_the_summary_is_changed_entry_by_entry(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.update_summary(status="running", phases=[])
    folder.update_summary(status="complete")
    assert folder.read_summary() == {"status": "complete", "phases": []}
