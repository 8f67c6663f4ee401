"""`bert-ds pretrain` under the real deepspeed launcher, undisturbed and disturbed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.commands import (
    BIN,
    deepspeed_pretrain,
    kill,
    run,
    run_bert_ds,
    start,
    wait_until,
)
from tests.support.datasets import make_dataset
from tests.support.recipes import tiny_recipe, write_recipe
from tests.support.run_folders import (
    assert_same_result,
    num_rows,
    rows_of,
    summary_of,
)

pytestmark = pytest.mark.slow

ROW_KEYS = {
    "phase", "global_step", "skipped_steps", "samples_seen", "tokens_seen", "loss", "mlm_loss",
    "nsp_loss", "mlm_accuracy", "nsp_accuracy", "learning_rate", "grad_norm", "loss_scale",
    "step_s", "data_wait_s", "sequences_per_s", "tokens_per_s", "trust_ratio_min",
    "trust_ratio_median", "trust_ratio_max", "tflop_per_s", "mfu", "peak_memory_mib",
}  # fmt: skip


def test_the_run_folder_holds_what_others_read(finished_run: Path) -> None:
    summary = summary_of(finished_run)
    assert summary["status"] == "complete"
    assert (summary["world_size"], summary["zero_stage"], summary["precision"]) == (2, 0, "fp32")
    phases = summary["phases"]
    assert isinstance(phases, list)
    assert [(p["name"], p["sequence_length"], p["global_step"]) for p in phases] == [
        ("phase1", 32, 12),
        ("phase2", 64, 8),
    ]
    assert [p["samples_seen"] for p in phases] == [96, 64]
    assert all(p["final_loss"] > 0 for p in phases)
    held_out = summary["held_out"]
    assert isinstance(held_out, dict)
    assert {"mlm_accuracy", "mlm_loss", "nsp_accuracy", "unigram_accuracy"} <= held_out.keys()
    versions = summary["versions"]
    assert isinstance(versions, dict)
    assert {"torch", "deepspeed", "bert_ds"} <= versions.keys()
    rows = rows_of(finished_run)
    assert [row["global_step"] for row in rows] == [*range(1, 13), *range(1, 9)]
    # the last row of each flush, here at every checkpoint, also names the parameters furthest from
    # the median
    last_of_flush = {"trust_ratios_furthest"}
    assert all(
        row.keys() == ROW_KEYS | (last_of_flush if row["global_step"] % 2 == 0 else set())
        for row in rows
    )
    assert all(0 < row["trust_ratio_min"] <= row["trust_ratio_median"] for row in rows)
    assert all(len(row.get("trust_ratios_furthest", range(10))) == 10 for row in rows)
    config = json.loads((finished_run / "config.json").read_text())
    assert config["config"]["recipe"] == "tiny"
    assert config["command"].startswith("bert-ds pretrain --recipe")


def test_a_finished_run_is_not_done_again(
    own_run: Path, tiny_data: Path, tiny_recipe_folder: Path
) -> None:
    before = (own_run / "summary.json").read_bytes()
    done = run(*deepspeed_pretrain(2, tiny_recipe_folder, tiny_data, own_run))
    assert done.returncode == 0
    assert "is complete, nothing to do" in done.stdout
    assert (own_run / "summary.json").read_bytes() == before


@pytest.mark.parametrize(
    "moment",
    [
        "between the phases",
        # as under `supervise`, and as with single segments, there with readers and a cache
        pytest.param("in the middle of phase 2", marks=pytest.mark.long),
    ],
)
def test_a_killed_run_goes_on_to_the_same_result(
    moment: str, finished_run: Path, tiny_data: Path, tiny_recipe_folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    command = deepspeed_pretrain(2, tiny_recipe_folder, tiny_data, output)
    checkpoints = output / "checkpoints"
    conditions: dict[str, Callable[[], bool]] = {
        "between the phases": lambda: (checkpoints / "00-phase1-step00000012").exists(),
        "in the middle of phase 2": lambda: num_rows(output) >= 12 + 5,
    }
    process = start(*command)
    wait_until(conditions[moment], process)
    kill(process)
    assert summary_of(output)["status"] == "running"
    again = run(*command)
    assert again.returncode == 0, again.stderr
    assert_same_result(output, finished_run)


def test_a_stopped_run_saves_its_state_and_goes_on_to_the_same_result(
    finished_run: Path, tiny_data: Path, tiny_recipe_folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    command = deepspeed_pretrain(2, tiny_recipe_folder, tiny_data, output)
    process = start(*command)
    wait_until(lambda: num_rows(output) >= 3, process)
    os.killpg(process.pid, signal.SIGTERM)  # launcher and ranks, as a scheduler does
    _, stderr = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "to resume from there" in stderr
    assert summary_of(output)["status"] == "interrupted"
    again = run(*command)
    assert again.returncode == 0, again.stderr
    assert_same_result(output, finished_run)


def test_one_process_without_a_launcher_is_stopped_with_the_code_for_try_again(
    tiny_data: Path, tiny_recipe_folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    process = start(
        "bert-ds", "pretrain", "--recipe", tiny_recipe_folder, "--data", tiny_data,
        "--output-dir", output, "--set", "phases.0.total_steps=5000",
    )  # fmt: skip
    wait_until(lambda: num_rows(output) >= 3, process)
    process.send_signal(signal.SIGUSR1)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75
    assert "stopped on request in phase1" in stderr


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGUSR1, marks=pytest.mark.long),  # the command dies of either
        signal.SIGKILL,
    ],
)
def test_ranks_that_lose_the_deepspeed_command_save_their_state_and_end(
    number: signal.Signals,
    finished_run: Path,
    tiny_data: Path,
    tiny_recipe_folder: Path,
    tmp_path: Path,
) -> None:
    output = tmp_path / "run"
    process = start(
        *deepspeed_pretrain(2, tiny_recipe_folder, tiny_data, output),
        "--set", "phases.0.total_steps=5000",
    )  # fmt: skip
    wait_until(lambda: num_rows(output) >= 3, process)
    process.send_signal(number)  # to the command alone, which dies of it
    process.wait(timeout=30)
    deadline = time.monotonic() + 30
    while summary_of(output)["status"] == "running" and time.monotonic() < deadline:
        time.sleep(0.1)
    kill(process)  # nothing of the group may be left, ranks included
    assert summary_of(output)["status"] == "interrupted"
    saved = (output / "checkpoints" / "latest").read_text()
    assert int(saved.strip()[-8:]) == rows_of(output)[-1]["global_step"]


def test_going_back_to_a_checkpoint_of_another_model_is_refused_and_nothing_is_written(
    finished_run: Path, tiny_data: Path, tiny_recipe_folder: Path, tmp_path: Path
) -> None:
    copy, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(finished_run, copy)
    arguments = ["pretrain", "--recipe", tiny_recipe_folder, "--data", tiny_data]
    wider = ["--set", "model.intermediate_size=64", "phases.0.total_steps=2"]
    made = run_bert_ds(*arguments, "--output-dir", other, *wider, "phases.1.total_steps=1")
    assert made.returncode == 0, made.stderr
    before = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file() and p.name != ".lock"}
    foreign = other / "checkpoints" / "00-phase1-step00000002"
    done = run_bert_ds(*arguments, "--output-dir", copy, "--resume", foreign)
    assert done.returncode == 2
    assert "intermediate.dense.weight has shape (64, 16), the model has (32, 16)" in done.stderr
    after = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file() and p.name != ".lock"}
    assert after == before


def test_going_back_to_an_earlier_checkpoint_repeats_what_came_after_it(
    finished_run: Path, tiny_data: Path, tiny_recipe_folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    shutil.copytree(finished_run, output)
    end_of_phase_1 = output / "checkpoints" / "00-phase1-step00000012"
    command = deepspeed_pretrain(2, tiny_recipe_folder, tiny_data, output)
    done = run(*command, "--resume", end_of_phase_1)
    assert done.returncode == 0, done.stderr
    assert "going on" not in done.stderr  # phase 2 begins
    assert_same_result(output, finished_run)


@pytest.mark.parametrize("lengths", [(64,), (32, 32, 64)])
def test_a_run_has_as_many_phases_as_its_recipe(
    tiny_data: Path, tmp_path: Path, lengths: tuple[int, ...]
) -> None:
    recipe = tiny_recipe(total_steps=(3, 3))
    phase = recipe["phases"][0]
    recipe["phases"] = [
        {
            **phase,
            "name": f"part{number}",
            "sequence_length": length,
            "max_predictions_per_seq": length // 4,
            "deepspeed": f"part{number}.json",
        }
        for number, length in enumerate(lengths)
    ]
    write_recipe(tmp_path / "recipe", recipe)
    output = tmp_path / "run"
    done = run_bert_ds(
        "pretrain", "--recipe", tmp_path / "recipe", "--data", tiny_data, "--output-dir",
        output,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = [(f"part{number}", step) for number in range(len(lengths)) for step in (1, 2, 3)]
    assert [(row["phase"], row["global_step"]) for row in rows_of(output)] == expected
    assert summary_of(output)["held_out"]["sequence_length"] == lengths[-1]


def test_moments_are_carried_into_the_next_phase_or_begin_at_zero(
    tiny_data: Path, tiny_recipe_folder: Path, tmp_path: Path
) -> None:
    saved = {}
    for moments in ("carry", "reset"):
        done = run_bert_ds(
            "pretrain", "--recipe", tiny_recipe_folder, "--data", tiny_data,
            "--output-dir", tmp_path / moments, "--set", "phases.0.total_steps=3",
            "phases.1.total_steps=1", f"phases.1.moments={moments}",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        folder = tmp_path / moments / "checkpoints"
        saved[moments] = load_file(folder / "01-phase2-step00000001" / "optimizer.safetensors")
    before = load_file(folder / "00-phase1-step00000003" / "optimizer.safetensors")
    # the same weights, rows and dropout, so the same gradient: what is left of before differs
    for name, former in before.items():
        beta = 0.9 if name.startswith("exp_avg/") else 0.999
        left = saved["carry"][name] - saved["reset"][name]
        torch.testing.assert_close(left, beta * former, rtol=1e-4, atol=1e-7, msg=name)
    assert all(former.any() for former in before.values())


def test_without_held_out_rows_the_run_says_so_and_completes(
    tiny_recipe_folder: Path, tmp_path: Path
) -> None:
    for length in (32, 64):
        make_dataset(tmp_path / "data" / f"seq{length}", sequence_length=length, num_valid=0)
    done = run_bert_ds(
        "pretrain", "--recipe", tiny_recipe_folder, "--data", tmp_path / "data",
        "--output-dir", tmp_path / "run", "--set", "phases.0.total_steps=1",
        "phases.1.total_steps=1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    warning = (
        "held-out rows: there are none (warned about below 100): there will be no held-out result"
    )
    assert done.stderr.count(f"seq32: {warning}") == done.stderr.count(f"seq64: {warning}") == 1
    assert summary_of(tmp_path / "run")["held_out"] is None
    evaluated = run_bert_ds("evaluate", "--run", tmp_path / "run", "--data", tmp_path / "data")
    assert evaluated.returncode == 1
    assert "--valid-fraction" in evaluated.stderr


def test_no_compiler_is_needed(tiny_data: Path, tiny_recipe_folder: Path, tmp_path: Path) -> None:
    command = deepspeed_pretrain(
        2, tiny_recipe_folder, tiny_data, tmp_path / "run", "--set", "phases.0.total_steps=2",
        "phases.1.total_steps=2",
    )  # fmt: skip
    # Nothing in PATH but the environment's own commands, and an empty cache of built ops.
    env = {"PATH": str(BIN), "TORCH_EXTENSIONS_DIR": str(tmp_path / "ops"), "CC": "", "CXX": ""}
    done = run(BIN / "deepspeed", *command[1:], env=env)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ops").exists()


def test_a_second_run_on_the_same_folder_is_refused_while_the_first_runs(
    tiny_data: Path, tiny_recipe_folder: Path, tmp_path: Path
) -> None:
    command = [
        "bert-ds", "pretrain", "--recipe", tiny_recipe_folder, "--data", tiny_data,
        "--output-dir", tmp_path / "run", "--set", "phases.0.total_steps=5000",
    ]  # fmt: skip
    first = start(*command)
    wait_until(lambda: num_rows(tmp_path / "run") >= 1, first)
    second = run(*command)
    kill(first)
    assert second.returncode == 1
    assert "another run is writing to" in second.stderr
