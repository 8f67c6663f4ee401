"""Kill a run again and again, and compare its results with those of an undisturbed one.

    python -m tests.support.kills FOLDER --kills 50

trains a tiny model on two ranks under the deepspeed launcher, with dropout and masks that are drawn
as rows are read. Each start is killed with SIGKILL at a random moment, also while a checkpoint is
written: the whole job, or one rank, after which the job must end by itself. The same command then
resumes, until the run is complete; where kills are left, another run begins.
Weights, moments, held-out result and every logged update must be those of the undisturbed run.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

from tests.support.commands import deepspeed_pretrain, kill, run, start
from tests.support.datasets import make_dataset
from tests.support.recipes import tiny_deepspeed, tiny_recipe, write_recipe
from tests.support.run_folders import assert_same_result, num_rows

UPDATES_A_KILL = 0.7
"""Fewer than a start gains between two kills: they reach well into the second phase."""
SECONDS_TO_END = 90.0
SETTINGS = [
    "--set", "model.hidden_dropout_prob=0.2", "dynamic_masking=token",
    "deepspeed.zero_optimization.stage=2", "evaluation.every_steps=7",
]  # fmt: skip


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counted = kill_again_and_again(arguments.folder, arguments.kills, arguments.seed)
    kinds = "; ".join(f"{number} of {what}" for what, number in sorted(counted.items()))
    print(f"{arguments.kills} kills ({kinds}): weights, moments, results and rows are the same")


def kill_again_and_again(folder: Path, num_kills: int, seed: int) -> Counter[str]:
    """Return how often what was killed; raise AssertionError where anything differs."""
    for length in (32, 64):
        make_dataset(folder / "data" / f"seq{length}", sequence_length=length, is_masked=False)
    steps = round(UPDATES_A_KILL * num_kills / 2) + 8
    recipe = tiny_recipe(total_steps=(steps, steps))
    recipe["checkpoint"] = {"every_steps": 3, "keep_last": 2}
    write_recipe(folder / "recipe", recipe, tiny_deepspeed())

    def command(output: Path) -> list[str]:
        places = (folder / "recipe", folder / "data", output)
        return [*deepspeed_pretrain(2, *places), *SETTINGS]

    undisturbed = folder / "undisturbed"
    done = run(*command(undisturbed), timeout_s=600)
    assert done.returncode == 0, done.stderr
    choice, counted = random.Random(seed), Counter[str]()
    number = 1
    while counted.total() < num_kills:
        disturbed = folder / f"disturbed-{number}"
        process = start(*command(disturbed))
        what = choice.choice(["job", "job while saving", "one rank", "one rank while saving"])
        _wait_for_a_moment(process, disturbed, choice, while_saving="saving" in what)
        if process.poll() is not None:  # it has come to its end
            printed = process.communicate()
            assert process.returncode == 0, printed
            assert_same_result(disturbed, undisturbed)
            print(f"run {number} is complete, and the same", flush=True)
            number += 1
            continue
        victims = ranks_of(process) if what.startswith("one rank") else []
        if victims:
            _kill_one(process, choice.choice(victims))
        else:
            what = what.replace("one rank", "job")  # its ranks have not begun yet
            kill(process)
        rows = num_rows(disturbed)
        phase = "phase 2" if rows > steps else "phase 1"
        counted[f"{what}, {phase}"] += 1
        print(f"kill {counted.total()}: {what}, {phase}, at {rows} rows", flush=True)
    done = run(*command(disturbed), timeout_s=600)
    assert done.returncode == 0, done.stderr
    assert_same_result(disturbed, undisturbed)
    return counted


def _wait_for_a_moment(
    process: subprocess.Popen[str], output: Path, choice: random.Random, *, while_saving: bool
) -> None:
    """Until some updates are done or a checkpoint is being written, and then a little longer."""
    if choice.random() < 0.1:
        time.sleep(choice.uniform(0.0, 6.0))  # the start itself
        return
    more, before = choice.randint(1, 5), num_rows(output)
    checkpoints = output / "checkpoints"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        # starting again drops rows that no checkpoint knows: count from the least
        now = num_rows(output)
        before = min(before, now)
        if now >= before + more and (not while_saving or any(checkpoints.glob("*.incomplete"))):
            break
        time.sleep(0.001)
    time.sleep(choice.uniform(0.0, 0.02))


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    """Process ids of the ranks that a launcher has started."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            is_of_group = os.getpgid(int(folder.name)) == process.pid
            words = (folder / "cmdline").read_bytes().split(b"\0")
            variables = (folder / "environ").read_bytes().split(b"\0")
        except (OSError, ProcessLookupError):
            continue  # it has ended meanwhile
        is_a_rank = any(variable.startswith(b"RANK=") for variable in variables)
        if (
            is_of_group
            and is_a_rank
            and b"pretrain" in words
            and b"spawn_main" not in b"".join(words)
        ):
            found.append(int(folder.name))
    return found


def _kill_one(process: subprocess.Popen[str], victim: int) -> None:
    """Kill a rank; the job must end by itself, with an error."""
    os.kill(victim, signal.SIGKILL)
    try:
        process.communicate(timeout=SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        kill(process)
        raise AssertionError(f"the job outlives its rank by {SECONDS_TO_END} s") from None
    assert process.returncode != 0
    kill(process)


if __name__ == "__main__":
    main()
