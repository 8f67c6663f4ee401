"""Training goes on without a screen, and a stop that is asked for leaves its state and code 75."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.commands import deepspeed_pretrain, start, wait_until
from tests.support.run_folders import num_rows, rows_of, summary_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def command_of(recipe: Path, data: Path, output: Path, *settings: str) -> list[str]:
    words = ["bert-ds", "pretrain", "--recipe", recipe, "--data", data, "--output-dir", output]
    return [str(word) for word in (*words, "--set", *settings)]


def test_a_run_whose_output_nobody_reads_any_more_trains_to_its_end(
    tiny_data: Path, tiny_recipe_folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    process = start(*command_of(tiny_recipe_folder, tiny_data, output, "logging.every_steps=1"))
    wait_until(lambda: num_rows(output) >= 1, process)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    assert process.wait(timeout=120) == 0
    assert summary_of(output)["status"] == "complete"


def start_with_tee(command: list[str], folder: Path) -> subprocess.Popen[str]:
    """As a person does: `COMMAND 2>&1 | tee log`; ends with the code of COMMAND."""
    script = (
        f"trap : INT\n{shlex.join(command)} 2>&1 | tee {shlex.quote(str(folder / 'log'))}\n"
        "exit ${PIPESTATUS[0]}\n"
    )
    return start("bash", "-c", script)


ENDLESS = ("phases.0.total_steps=100000", "checkpoint.every_steps=100000")


def interrupt_and_wait(process: subprocess.Popen[str], output: Path) -> int:
    """Press Ctrl-C twice, quickly: it goes to the launcher, its ranks and tee."""
    wait_until(lambda: num_rows(output) >= 10, process)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.2)
    process.communicate(timeout=90)
    return int(process.returncode)


def check_is_saved(output: Path) -> None:
    """Everything up to the last logged update is in a checkpoint."""
    assert summary_of(output)["status"] == "interrupted"
    latest = (output / "checkpoints" / "latest").read_text().strip()
    assert latest == f"00-phase1-step{rows_of(output)[-1]['global_step']:08d}"


def test_ctrl_c_of_a_run_behind_tee_saves_its_state(
    tiny_data: Path, tiny_recipe_folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    command = command_of(tiny_recipe_folder, tiny_data, output, *ENDLESS)
    assert interrupt_and_wait(start_with_tee(command, tmp_path), output) == 75
    check_is_saved(output)


def test_ctrl_c_of_a_launched_run_behind_tee_saves_its_state(
    tiny_data: Path, tiny_recipe_folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    command = deepspeed_pretrain(2, tiny_recipe_folder, tiny_data, output, "--set", *ENDLESS)
    process = start_with_tee([str(word) for word in command], tmp_path)
    assert interrupt_and_wait(process, output) != 0  # the launcher's own code
    check_is_saved(output)
