"""RoBERTa's way through the real commands: rows of one segment, with new masks in every epoch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bert_ds.train.run_folder import RunFolder
from bert_ds.train.setup import build_model
from tests.support.commands import deepspeed_pretrain, kill, run, run_bert_ds, start, wait_until
from tests.support.datasets import make_dataset
from tests.support.ranks import run_on_ranks
from tests.support.runs import pretrain_in_rank

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("single")
    for length in (32, 64):
        make_dataset(
            folder / f"seq{length}",
            sequence_length=length,
            num_train=40,  # the first phase passes it twice and a half
            is_masked=False,
            is_paired=False,
        )
    return folder


def rows_of(run_folder: Path) -> list[dict[str, Any]]:
    path = run_folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def final_weights(run_folder: Path) -> dict[str, torch.Tensor]:
    folder = run_folder / "checkpoints"
    return load_file(folder / (folder / "latest").read_text().strip() / "weights.safetensors")


def test_a_run_trains_reports_no_nsp_and_is_the_same_with_a_cache_and_a_kill(
    data: Path, tiny_recipe_folder: Path, tmp_path: Path
) -> None:
    plain, other = tmp_path / "plain", tmp_path / "other"
    run_on_ranks(2, pretrain_in_rank, tmp_path, tiny_recipe_folder, data, plain, [])
    settings = ["--set", f"data.cache_dir={tmp_path / 'cache'}"]
    command = deepspeed_pretrain(2, tiny_recipe_folder, data, other, *settings)
    process = start(*command)
    wait_until(lambda: len(rows_of(other)) >= 12 + 3, process)
    kill(process)
    done = run(*command)
    assert done.returncode == 0, done.stderr

    expected, found = final_weights(plain), final_weights(other)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    config = RunFolder(other).read_config()
    assert config is not None
    initial = build_model(config, torch.device("cpu")).state_dict()
    moved = {name for name in expected if not torch.equal(expected[name], initial[name])}
    of_pairs = {name for name in expected if "pooler" in name or "seq_relationship" in name}
    assert len(of_pairs) == 4
    assert moved == set(expected) - of_pairs  # what no loss depends on is not decayed away
    rows = rows_of(plain)
    assert [row["mlm_loss"] for row in rows] == [row["mlm_loss"] for row in rows_of(other)]
    for row in rows:
        assert row["nsp_loss"] is None
        assert row["nsp_accuracy"] is None
        assert row["loss"] == row["mlm_loss"] > 0
    copied = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert any(name.startswith("train-") for name in copied)
    assert any(name.startswith("valid-") for name in copied)
    assert not any(name.endswith(".partial") for name in copied)

    held_out = json.loads((plain / "summary.json").read_text())["held_out"]
    assert held_out["predictions"] > 0
    evaluated = run_bert_ds("evaluate", "--run", other, "--data", data)
    assert evaluated.returncode == 0, evaluated.stderr
    again = json.loads(evaluated.stdout)
    assert (again.pop("nsp_accuracy"), held_out.pop("nsp_accuracy")) == (None, None)
    assert again == pytest.approx(held_out, rel=1e-6)
    reported = run("bert-ds", "report", "--run", other)
    assert reported.returncode == 0, reported.stderr
    assert "MLM accuracy" in reported.stdout
    assert "NSP" not in reported.stdout


def test_dynamic_masking_of_masked_rows_is_refused(
    tiny_data: Path, tiny_recipe_folder: Path, tmp_path: Path
) -> None:
    done = run_bert_ds(
        "pretrain", "--recipe", tiny_recipe_folder, "--data", tiny_data,
        "--output-dir", tmp_path / "run", "--set", "dynamic_masking=token",
    )  # fmt: skip
    assert done.returncode == 2
    assert "dynamic_masking is 'token', but the rows of" in done.stderr
