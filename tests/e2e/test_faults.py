"""Faults end a run on every rank, within bounded time, with a message that helps."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from bert_ds.distributed.master_address import free_port
from tests.support.commands import deepspeed_pretrain, kill, run, start, wait_until
from tests.support.datasets import make_dataset
from tests.support.kills import kill_again_and_again, ranks_of
from tests.support.recipes import tiny_recipe, write_recipe
from tests.support.run_folders import assert_same_result, num_rows, summary_of

pytestmark = pytest.mark.slow


@pytest.mark.long
@pytest.mark.timeout(600)
def test_kills_at_random_moments_change_nothing(tmp_path: Path) -> None:
    assert kill_again_and_again(tmp_path, num_kills=4, seed=1).total() == 4


def test_a_hanging_rank_ends_the_run_and_every_rank_says_where_it_stood(
    tiny_data: Path, tiny_recipe_folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    process = start(
        *deepspeed_pretrain(2, tiny_recipe_folder, tiny_data, output),
        "--set", "phases.0.total_steps=100000", "watchdog_s=8",
    )  # fmt: skip
    wait_until(lambda: num_rows(output) >= 3, process)
    victim = ranks_of(process)[-1]
    os.kill(victim, signal.SIGSTOP)
    started = time.monotonic()
    wait_until_ended(process, victim)
    assert time.monotonic() - started < 60
    _, stderr = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "no progress for" in stderr
    assert re.search(r"no progress for .*; phase1, update \d+: \w+", stderr), stderr
    kill(process)


def wait_until_ended(process, victim: int) -> None:
    """The launcher ends; a stopped process takes its end only when it goes on."""
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
        if not Path(f"/proc/{victim}").exists():
            break
        with open(f"/proc/{victim}/status") as status:
            pending = next(line for line in status if line.startswith("ShdPnd"))
        if int(pending.split()[1], 16):
            os.kill(victim, signal.SIGCONT)


def test_the_end_of_its_time_stops_a_run_with_its_state(
    tiny_data: Path, tiny_recipe_folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    command = [
        "bert-ds", "pretrain", "--recipe", tiny_recipe_folder, "--data", tiny_data,
        "--output-dir", output, "--set", "phases.0.total_steps=100000", "--time-limit",
    ]  # fmt: skip
    done = run(*command, "12s")
    assert done.returncode == 75, done.stderr
    assert "stopped on request in phase1" in done.stderr
    assert summary_of(output)["status"] == "interrupted"
    saved = (output / "checkpoints" / "latest").read_text().strip()
    assert int(saved[-8:]) == num_rows(output) > 0
    wrong = run(*command, "soon")
    assert wrong.returncode == 2
    assert "'soon' is no duration; write 90m, 3h50m or 3600" in wrong.stderr


@pytest.mark.long
def test_a_shard_that_goes_while_training_ends_the_run_and_is_named(tmp_path: Path) -> None:
    for length in (32, 64):
        make_dataset(tmp_path / "data" / f"seq{length}", sequence_length=length, num_train=4000)
    write_recipe(tmp_path / "recipe", tiny_recipe(total_steps=(100_000, 4)))
    output = tmp_path / "run"
    process = start(*deepspeed_pretrain(2, tmp_path / "recipe", tmp_path / "data", output))
    wait_until(lambda: num_rows(output) >= 3, process)
    for shard in (tmp_path / "data" / "seq32").glob("train-*.tar"):
        shard.write_bytes(b"")
    _, stderr = process.communicate(timeout=90)
    assert process.returncode != 0
    assert "train-" in stderr
    assert "bert-ds: error" in stderr
    kill(process)


def test_supervise_starts_again_after_a_kill_and_the_result_is_the_same(
    finished_run: Path, tiny_data: Path, tiny_recipe_folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    command = deepspeed_pretrain(2, tiny_recipe_folder, tiny_data, output)
    process = start("bert-ds", "supervise", "--max-restarts", "1", "--pause", "0.1", "--", *command)
    wait_until(lambda: num_rows(output) >= 4, process)
    os.kill(one_rank_of(output), signal.SIGKILL)
    _, stderr = process.communicate(timeout=150)
    assert process.returncode == 0, stderr
    assert "starting it again (restart 1 of 1 since the last new checkpoint)" in stderr
    assert_same_result(output, finished_run)


def one_rank_of(output: Path) -> int:
    """A rank that trains into a folder, whichever process has started it."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                variables = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if str(output).encode() in words and b"RANK=1" in variables:
                return int(folder.name)
    raise AssertionError("no rank 1 is there")


@pytest.mark.parametrize(
    ("settings", "code", "message"),
    [
        (["model.hidden_size=17"], 2, "it is not started again"),
        (["model.vocab_size=48"], 2, "it is not started again"),  # the dataset has more pieces
        (["phases.0.deepspeed.optimizer.params.lr=1e30"], 1, "--max-restarts 1"),
    ],
)
def test_supervise_gives_up_where_starting_again_does_not_help(
    tiny_data: Path, tiny_recipe_folder: Path, tmp_path: Path,
    settings: list[str], code: int, message: str,
) -> None:  # fmt: skip
    done = run(
        "bert-ds", "supervise", "--max-restarts", "1", "--pause", "0.1", "--", "bert-ds",
        "pretrain", "--recipe", tiny_recipe_folder, "--data", tiny_data, "--output-dir",
        tmp_path / "run", "--set", *settings,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert message in done.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["sleep", "1"], "needs a command that trains, with its --output-dir"),
        (["x", "--output-dir", "r", "--resume", "never"], "supervise needs --resume auto"),
        (["x", "--output-dir=r", "--resume=c/x"], "with --resume c/x a second start"),
        (["x", "--output-dir=r", "--hostfile", "/nohosts"], "there is no hostfile /nohosts"),
    ],
)
def test_supervise_needs_a_run_that_it_can_start_again(command: list[str], message: str) -> None:
    lost = run("bert-ds", "supervise", "--", *command)
    assert lost.returncode == 2
    assert message in lost.stderr


def test_supervise_sees_wrong_settings_also_under_torchrun_which_hides_the_code(
    tiny_data: Path, tiny_recipe_folder: Path, tmp_path: Path
) -> None:
    done = run(
        "bert-ds", "supervise", "--max-restarts", "1", "--pause", "0.1", "--", "torchrun",
        "--nproc_per_node", "1", "--master_port", str(free_port()), "-m", "bert_ds", "pretrain",
        "--recipe", tiny_recipe_folder, "--data", tiny_data, "--output-dir", tmp_path / "run",
        "--set", "model.hidden_size=17",
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "it is not started again" in done.stderr


def test_a_dry_run_under_supervise_is_no_failure(
    tiny_data: Path, tiny_recipe_folder: Path, tmp_path: Path
) -> None:
    command = [
        "bert-ds", "supervise", "--max-restarts", "2", "--", "bert-ds", "pretrain", "--recipe",
        tiny_recipe_folder, "--data", tiny_data, "--output-dir", tmp_path / "run", "--dry-run",
    ]  # fmt: skip
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("nothing was started (--dry-run)") == 1
    assert "supervise" not in done.stderr
    assert "bert-ds: error" not in done.stderr
    wrong = run(*command, "--set", "model.hidden_size=17")
    assert wrong.returncode == 2
    assert "the dry run ended with code 2 (see above)" in wrong.stderr


def test_supervise_lets_ranks_of_a_launcher_save_before_it_ends(
    tiny_data: Path, tiny_recipe_folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    command = deepspeed_pretrain(2, tiny_recipe_folder, tiny_data, output)
    process = start(
        "bert-ds", "supervise", "--", *command, "--set", "phases.0.total_steps=100000",
        "--time-limit=1h",
    )  # fmt: skip
    wait_until(lambda: num_rows(output) >= 3, process)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=90)
    assert process.returncode == 75, stderr
    assert summary_of(output)["status"] == "interrupted"
    saved = (output / "checkpoints" / "latest").read_text().strip()
    assert int(saved[-8:]) == num_rows(output)
    # what another start left in the summary says nothing about this one
    again = start("bert-ds", "supervise", "--max-restarts", "0", "--", *command, "--set", "x=1")
    _, stderr = again.communicate(timeout=90)
    assert again.returncode == 2, stderr


@pytest.mark.long
def test_a_loss_that_is_not_a_number_is_logged_and_ends_all_ranks(
    tiny_data: Path, tiny_recipe_folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    command = deepspeed_pretrain(2, tiny_recipe_folder, tiny_data, output)
    done = run(*command, "--set", "phases.0.deepspeed.optimizer.params.lr=1e30")
    assert done.returncode != 0
    assert "training of phase1 has diverged at update" in done.stderr
    assert summary_of(output)["status"] == "failed"
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["loss"] is None


def test_a_checkpoint_that_cannot_be_written_ends_all_ranks_and_loses_nothing(
    tiny_data: Path, tiny_recipe_folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    process = start(
        *deepspeed_pretrain(2, tiny_recipe_folder, tiny_data, output),
        "--set", "phases.0.total_steps=100000", "checkpoint.keep_last=3",
    )  # fmt: skip
    wait_until(lambda: (output / "checkpoints" / "latest").exists(), process)
    checkpoints = output / "checkpoints"
    while True:  # a file where the folder was: nothing can be written there any more
        try:
            shutil.move(checkpoints, output / "aside")
            checkpoints.write_text("in the way")
            break
        except OSError:
            shutil.rmtree(output / "aside", ignore_errors=True)
    _, stderr = process.communicate(timeout=90)
    assert process.returncode != 0
    assert "cannot write checkpoint" in stderr
    assert "Earlier checkpoints are untouched" in stderr
    kill(process)
