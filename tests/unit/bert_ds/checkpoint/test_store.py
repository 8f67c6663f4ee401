"""Checkpoints: whole or not there; the newest whole one is chosen; ends of phases stay."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bert_ds.checkpoint import store as module
from bert_ds.checkpoint.content import CheckpointState, check_files, load_checkpoint, load_weights
from bert_ds.checkpoint.store import newest_checkpoint, remove_old_checkpoints, save_checkpoint
from bert_ds.errors import CheckpointError

STATE = CheckpointState(
    phase="phase1",
    phase_index=0,
    global_step=4,
    skipped_steps=1,
    samples_seen=40,
    tokens_seen=700,
    is_phase_end=False,
    optimizer_step=4,
    loss_scaler={"cur_scale": 1024.0},
    dataset_fingerprint="d" * 64,
    vocabulary_sha256="v" * 64,
    world_size=2,
    zero_stage=0,
    precision="fp32",
    versions={"torch": "x"},
)
WEIGHTS = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2)}
MOMENTS = {f"{m}/{n}": t * 2 for m in ("exp_avg", "exp_avg_sq") for n, t in WEIGHTS.items()}


def save(folder: Path, step: int, is_best: bool = False, **changes: object) -> Path:
    state = replace(STATE, global_step=step, **changes)
    return save_checkpoint(folder, state, WEIGHTS, MOMENTS, is_best=is_best)


def test_what_is_saved_is_loaded_bit_for_bit(tmp_path: Path) -> None:
    path = save(tmp_path, 4)
    loaded = load_checkpoint(path)
    assert loaded.state == STATE
    assert loaded.weights.keys() == WEIGHTS.keys()
    assert all(torch.equal(loaded.weights[name], WEIGHTS[name]) for name in WEIGHTS)
    assert all(torch.equal(loaded.optimizer[name], MOMENTS[name]) for name in MOMENTS)
    assert (tmp_path / "latest").read_text() == path.name + "\n"


def test_an_empty_or_missing_folder_is_a_fresh_start(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) == (None, [])
    assert newest_checkpoint(tmp_path / "nowhere") == (None, [])


def test_the_newest_is_by_phase_and_step_and_survives_a_lost_pointer(tmp_path: Path) -> None:
    save(tmp_path, 1000)
    newest = save(tmp_path, 5, phase="phase2", phase_index=1)
    assert newest_checkpoint(tmp_path)[0] == newest
    (tmp_path / "latest").unlink()
    assert newest_checkpoint(tmp_path)[0] == newest


def test_the_pointer_decides_where_it_names_a_whole_checkpoint(tmp_path: Path) -> None:
    first = save(tmp_path, 2)
    save(tmp_path, 4)
    (tmp_path / "latest").write_text(first.name + "\n")
    assert newest_checkpoint(tmp_path)[0] == first


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "manifest"])
def test_a_damaged_checkpoint_is_passed_over_for_the_former_one(
    tmp_path: Path, damage: str
) -> None:
    former, newest = save(tmp_path, 2), save(tmp_path, 4)
    file = newest / ("manifest.json" if damage == "manifest" else "weights.safetensors")
    content = file.read_bytes()
    if damage in ("remove", "manifest"):
        file.unlink()
    elif damage == "truncate":
        file.write_bytes(content[:-1])
    else:
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    chosen, complaints = newest_checkpoint(tmp_path)
    assert chosen == former
    assert len(complaints) == 1
    assert newest.name in complaints[0]
    with pytest.raises(CheckpointError, match=newest.name):
        check_files(newest)


def test_no_whole_checkpoint_among_damaged_ones_is_an_error_not_a_fresh_start(
    tmp_path: Path,
) -> None:
    (save(tmp_path, 2) / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole"):
        newest_checkpoint(tmp_path)


@pytest.mark.parametrize("at", ["save_file", "describe_files", "sync", "point_to"])
def test_a_kill_at_any_stage_of_a_save_leaves_a_loadable_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    save(tmp_path, 2)

    class Killed(BaseException):
        pass

    def kill(*args: object, **kwargs: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module, at, kill)
        with pytest.raises(Killed):
            save(tmp_path, 4)
    chosen, _ = newest_checkpoint(tmp_path)
    assert chosen is not None
    assert load_checkpoint(chosen).state.global_step == 2
    assert load_checkpoint(save(tmp_path, 4)).state.global_step == 4
    assert not list(tmp_path.glob("*.incomplete"))


def test_a_kill_while_the_pointer_is_written_does_not_disturb_the_next_save(tmp_path: Path) -> None:
    save(tmp_path, 2)
    (tmp_path / ".latest.incomplete").write_text("00-ph")
    newest = save(tmp_path, 4)
    assert newest_checkpoint(tmp_path)[0] == newest


def test_what_a_kill_between_two_renames_has_moved_aside_is_found_and_put_back(
    tmp_path: Path,
) -> None:
    only = save(tmp_path, 4)
    aside = only.with_name(only.name + ".replaced.incomplete")
    only.rename(aside)
    assert newest_checkpoint(tmp_path)[0] == aside
    assert load_checkpoint(aside).state.global_step == 4
    again = save(tmp_path, 6)
    assert only.is_dir()
    assert not aside.exists()
    assert newest_checkpoint(tmp_path)[0] == again


def test_a_full_disk_is_reported_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 2)

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(CheckpointError, match=r"No space left on device.*untouched"):
        save(tmp_path, 4)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["00-phase1-step00000002"]


def test_the_newest_and_the_ends_of_phases_stay(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        save(tmp_path, step, is_phase_end=step == 6)
    for step in (2, 4, 6):
        save(tmp_path, step, phase="phase2", phase_index=1)
    remove_old_checkpoints(tmp_path, keep_last=2)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [
        "00-phase1-step00000006",
        "01-phase2-step00000004",
        "01-phase2-step00000006",
    ]


def test_the_best_and_multiples_stay(tmp_path: Path) -> None:
    for step in (2, 4, 6, 8, 10, 12):
        save(tmp_path, step, is_best=step == 4)
        remove_old_checkpoints(tmp_path, keep_last=1, keep_every_steps=6)
    kept = sorted(int(path.name[-8:]) for path in tmp_path.glob("*-step*"))
    assert kept == [4, 6, 12]
    assert (tmp_path / "best").read_text() == (tmp_path / "best").read_text().strip() + "\n"
    save(tmp_path, 14, is_best=True)
    remove_old_checkpoints(tmp_path, keep_last=1)
    assert sorted(int(path.name[-8:]) for path in tmp_path.glob("*-step*")) == [14]


def test_without_room_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    former = save(tmp_path, 2)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=7))
    with pytest.raises(CheckpointError, match=r"it needs .* GB and 7e-09 GB are free"):
        save(tmp_path, 4)
    assert [path.name for path in tmp_path.glob("*-step*")] == [former.name]
    assert newest_checkpoint(tmp_path)[0] == former


def test_after_going_back_the_new_checkpoints_count_and_not_the_ones_ahead(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        save(tmp_path, step)
    newest = save(tmp_path, 3)  # gone back to 2, one update on
    remove_old_checkpoints(tmp_path, keep_last=2)
    assert newest_checkpoint(tmp_path)[0] == newest
    (tmp_path / "latest").unlink()
    assert newest_checkpoint(tmp_path)[0] == newest
    again = save(tmp_path, 3)
    assert load_checkpoint(again).state.global_step == 3
    assert not list(tmp_path.glob("*.incomplete"))


def test_another_format_or_another_model_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 2)
    loaded = load_checkpoint(path)
    with pytest.raises(CheckpointError, match=r"of another model"):
        load_weights(torch.nn.ModuleDict({"b": torch.nn.Linear(3, 2)}), loaded)
    with pytest.raises(CheckpointError, match=r"a.weight has shape \(2, 3\), the model has"):
        load_weights(torch.nn.ModuleDict({"a": torch.nn.Linear(4, 2)}), loaded)
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({**state, "format_version": 99}))
    with pytest.raises(CheckpointError, match=r"format 99, this version reads 1"):
        load_checkpoint(path)


def test_weights_are_readable_without_us(tmp_path: Path) -> None:
    from safetensors import safe_open

    path = save(tmp_path, 2)
    shutil.copy(path / "weights.safetensors", tmp_path / "alone.safetensors")
    with safe_open(tmp_path / "alone.safetensors", framework="np") as file:
        assert file.get_tensor("a.weight").tolist() == [[0, 1, 2], [3, 4, 5]]
