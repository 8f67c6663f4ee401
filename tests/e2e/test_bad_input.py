"""What a user gets wrong: a clear message, the right exit code, nothing lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.commands import BIN, ROOT, deepspeed_pretrain, run, run_bert_ds
from tests.support.datasets import make_dataset

pytestmark = pytest.mark.slow


def pretrain(recipe: Path, data: Path, output: Path, *more: str) -> tuple[int, str]:
    done = run_bert_ds(
        "pretrain", "--recipe", recipe, "--data", data, "--output-dir", output, *more
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def contents(folder: Path) -> dict[Path, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {path: path.read_bytes() for path in files}


def test_wrong_settings_are_reported_before_anything_starts(
    tiny_recipe_folder: Path, tiny_data: Path, tmp_path: Path
) -> None:
    code, stderr = pretrain(
        tiny_recipe_folder, tiny_data, tmp_path / "run", "--set", "model.hiden_size=8"
    )
    assert code == 2
    assert "unknown key 'model.hiden_size'; did you mean 'hidden_size'?" in stderr
    code, stderr = pretrain(
        tiny_recipe_folder, tiny_data, tmp_path / "run", "--set", "deepspeed.train_batch_size=9"
    )
    assert code == 2
    assert "train_batch_size (9) must be a multiple of" in stderr
    code, stderr = pretrain(
        tiny_recipe_folder, tiny_data, tmp_path / "run",
        "--set", "deepspeed.bf16.enabled=true",
    )  # fmt: skip
    assert code == 2
    assert "bf16 at ZeRO stage 0 trains wrongly" in stderr
    assert not (tmp_path / "run").exists()


def test_a_batch_that_does_not_divide_over_the_ranks_is_reported_once_and_ends_the_launcher(
    tiny_recipe_folder: Path, tiny_data: Path, tmp_path: Path
) -> None:
    changed = ("--set", "deepspeed.train_micro_batch_size_per_gpu=8")
    done = run(*deepspeed_pretrain(2, tiny_recipe_folder, tiny_data, tmp_path / "run", *changed))
    assert done.returncode != 0
    assert done.stderr.count("must be a multiple of") == 1


def test_data_that_does_not_fit_is_refused(
    tiny_recipe_folder: Path, tiny_data: Path, tmp_path: Path
) -> None:
    code, stderr = pretrain(tiny_recipe_folder, tmp_path / "nowhere", tmp_path / "run")
    assert (code, "nowhere/seq32" in stderr) == (2, True)
    data = tmp_path / "data"
    make_dataset(data / "seq32", sequence_length=32)
    make_dataset(data / "seq64", sequence_length=64, vocab_size=60)
    code, stderr = pretrain(tiny_recipe_folder, data, tmp_path / "run")
    assert code == 2
    assert "has 60 pieces and model.vocab_size is 64" in stderr
    assert "--set model.vocab_size=60" in stderr
    shutil.rmtree(data / "seq64")
    make_dataset(data / "seq64", sequence_length=64)
    shard = next((data / "seq64").glob("train-*.tar"))
    shard.write_bytes(shard.read_bytes()[:-1])
    code, stderr = pretrain(tiny_recipe_folder, data, tmp_path / "run")
    assert code == 2
    assert f"{shard} has" in stderr
    make_dataset(data / "seq64", sequence_length=64, num_train=128, min_length=64)
    one, other = sorted((data / "seq64").glob("train-*.tar"))[:2]
    shutil.copy(other, one)
    code, stderr = pretrain(tiny_recipe_folder, data, tmp_path / "run")
    assert code == 2
    assert f"shard {one} holds {other.name} of the same dataset" in stderr
    make_dataset(data / "seq64", sequence_length=64)
    with (data / "seq64" / "vocab.txt").open("a") as file:
        file.write("another\n")
    code, stderr = pretrain(tiny_recipe_folder, data, tmp_path / "run")
    assert code == 2
    assert "it is not the vocabulary that the shards were made with" in stderr


def test_a_run_folder_of_another_recipe_or_of_other_data_is_refused_and_left_as_it_is(
    tiny_recipe_folder: Path, tiny_data: Path, finished_run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished_run, copy)
    before = contents(copy)
    code, stderr = pretrain(tiny_recipe_folder, tiny_data, copy, "--set", "seed=1")
    assert code == 2
    assert "is the folder of another run: seed was 42 there and is 1 now" in stderr
    assert contents(copy) == before
    for name in ("01-phase2-step00000008", "01-phase2-step00000006"):
        shutil.rmtree(copy / "checkpoints" / name)
    (copy / "summary.json").write_text("{}")
    other = tmp_path / "other"
    for length in (32, 64):
        make_dataset(other / f"seq{length}", sequence_length=length, seed=99)
    before = contents(copy)
    code, stderr = pretrain(tiny_recipe_folder, other, copy)
    assert code == 2
    assert "was trained on dataset" in stderr
    assert "--override data continues with this one" in stderr
    assert contents(copy) == before
    code, stderr = pretrain(tiny_recipe_folder, other, copy, "--override", "data")
    assert code == 0
    assert "continuing at the same place in its order (--override data)" in stderr


def test_a_run_continues_with_other_settings_where_that_is_asked_for(
    tiny_recipe_folder: Path, tiny_data: Path, finished_run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished_run, copy)
    shutil.rmtree(copy / "checkpoints" / "01-phase2-step00000008")
    (copy / "summary.json").write_text("{}")
    lower = ["--set", "phases.1.deepspeed.optimizer.params.lr=0.001"]
    code, stderr = pretrain(tiny_recipe_folder, tiny_data, copy, *lower)
    assert code == 2
    assert "--override settings continues with these" in stderr
    code, stderr = pretrain(
        tiny_recipe_folder, tiny_data, copy, *lower, "--override", "settings", "data"
    )
    assert code == 0, stderr
    assert "lr was 0.01 there and is 0.001 now" in stderr
    rates = [
        json.loads(line)["learning_rate"]
        for line in (copy / "metrics.jsonl").read_text().splitlines()
    ]
    assert max(rates[-2:]) < 0.001 < rates[-4]
    wider = [*lower, "model.intermediate_size=64", "phases.1.total_steps=9"]
    code, stderr = pretrain(tiny_recipe_folder, tiny_data, copy, *wider, "--override", "settings")
    assert code == 2
    assert "the model has (64, 16)" in stderr


def test_a_folder_that_cannot_be_written_is_reported(
    tiny_recipe_folder: Path, tiny_data: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    code, stderr = pretrain(tiny_recipe_folder, tiny_data, tmp_path / "file" / "run")
    assert code == 1
    assert "cannot write to the run folder" in stderr


def test_usage_errors_exit_with_2() -> None:
    assert run("bert-ds").returncode == 2
    assert run("bert-ds", "pretrain").returncode == 2
    assert run("bert-ds", "no-such-command").returncode == 2
    done = run("bert-ds", "plan", "--recipe", ROOT / "ds_configs/bert-large", "--world-size", "0")
    assert done.returncode == 2
    assert "--world-size must be at least 1" in done.stderr
    none = run("bert-ds", "export-hf", "--run", "/nowhere", "--output-dir", "/nowhere/hf")
    assert none.returncode == 1
    assert "no run folder" in none.stderr


def test_plan_prints_the_batch_arithmetic() -> None:
    done = run("bert-ds", "plan", "--recipe", ROOT / "ds_configs/bert-large", "--world-size", "64")
    assert done.returncode == 0
    assert "65,536 sequences an update = micro batch 64 x accumulation 16 x 64 ranks" in done.stdout
    assert "336 M parameters" in done.stdout
    done = run(
        "bert-ds", "plan", "--recipe", ROOT / "ds_configs/bert-large", "--world-size", "64",
        "--gpu", "h200", "--gpus-per-host", "4", "--network-gbit-per-s", "400", "--mfu", "0.4",
    )  # fmt: skip
    assert done.returncode == 0
    assert "of 139.8 GiB (h200)" in done.stdout
    assert "micro batches compute full rows at 40% of the peak (--mfu): as asked for" in done.stdout
    assert "16 hosts of 4 GPUs each, links of 450 GB/s within a host" in done.stdout


def test_a_dry_run_checks_everything_and_writes_nothing(
    tiny_recipe_folder: Path, tiny_data: Path, tmp_path: Path
) -> None:
    done = run_bert_ds(
        "pretrain", "--recipe", tiny_recipe_folder, "--data", tiny_data,
        "--output-dir", tmp_path / "run", "--dry-run",
    )  # fmt: skip
    assert done.returncode == 0
    assert "settings, batches and datasets fit" in done.stdout
    assert "seq32: 200 train rows, 0.48 passes in phase1" in done.stdout
    assert done.stderr.count("held-out rows: 24 of them") == 2  # once a dataset
    assert not (tmp_path / "run").exists()


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    plan = f"{BIN}/bert-ds plan --recipe ds_configs/bert-large --world-size 64 --gpu h100 --json"
    done = run("bash", "-c", f"{plan} | {{ head -c 1; sleep 3; }}")  # the pipe breaks
    assert done.stdout == "{"
    assert not done.stderr
