"""Checkpoints in the background: in order, whole, and a failure is not lost."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bert_ds.checkpoint import writer as module
from bert_ds.checkpoint.content import load_checkpoint
from bert_ds.checkpoint.store import newest_checkpoint
from bert_ds.checkpoint.writer import CheckpointWriter
from bert_ds.config.recipe import CheckpointConfig
from bert_ds.errors import CheckpointError
from tests.unit.bert_ds.checkpoint.test_store import MOMENTS, STATE, WEIGHTS


def submit(writer: CheckpointWriter, step: int, is_best: bool = False) -> None:
    weights = {name: tensor + step for name, tensor in WEIGHTS.items()}
    writer.submit(replace(STATE, global_step=step), weights, MOMENTS, is_best=is_best)


def test_one_after_the_other_and_the_old_ones_go(tmp_path: Path) -> None:
    config = CheckpointConfig(keep_last=1, keep_every_steps=4)
    writer = CheckpointWriter(tmp_path, config)
    for step in (2, 4, 6, 8, 9):
        submit(writer, step, is_best=step == 2)
    writer.wait()
    writer.wait()
    assert sorted(int(p.name[-8:]) for p in tmp_path.glob("*-step*")) == [2, 4, 8, 9]
    newest, complaints = newest_checkpoint(tmp_path)
    assert newest is not None
    assert not complaints
    assert torch.equal(load_checkpoint(newest).weights["a.bias"], WEIGHTS["a.bias"] + 9)


def test_training_goes_on_while_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write, save = threading.Event(), module.save_checkpoint

    def waiting(*arguments: object, **flags: object) -> Path:
        assert may_write.wait(60)
        return save(*arguments, **flags)

    monkeypatch.setattr(module, "save_checkpoint", waiting)
    writer = CheckpointWriter(tmp_path, CheckpointConfig())
    submit(writer, 2)
    assert not list(tmp_path.iterdir())
    may_write.set()
    writer.wait()
    assert newest_checkpoint(tmp_path)[0] is not None


def test_a_failure_is_raised_once_at_the_next_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **flags: object) -> Path:
        raise CheckpointError("no room")

    writer = CheckpointWriter(tmp_path, CheckpointConfig())
    with monkeypatch.context() as patch:
        patch.setattr(module, "save_checkpoint", full)
        submit(writer, 2)
        while not writer.has_failed:
            threading.Event().wait(0.01)
        with pytest.raises(CheckpointError, match="no room"):
            submit(writer, 4)
        assert not writer.has_failed
    submit(writer, 6)
    writer.wait()
    assert [int(p.name[-8:]) for p in tmp_path.glob("*-step*")] == [6]
