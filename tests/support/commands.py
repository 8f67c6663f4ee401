"""Runs the real commands as a user would, with a time limit, and ends whole process groups."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from bert_ds.cli import main
from tests.support.forking import forking

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a command: CPU, one thread a rank, our commands first in PATH."""
    launcher_keys = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE")
    kept = {key: value for key, value in os.environ.items() if key not in launcher_keys}
    path = f"{BIN}{os.pathsep}{kept.get('PATH', '')}"
    return {
        **kept,
        "PATH": path,
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        **(changes or {}),
    }


def run(
    *arguments: str | Path, timeout_s: float = 180, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; stdout and stderr are text."""
    process = start(*arguments, env=env)
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        kill(process)
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def run_bert_ds(*arguments: str | Path, timeout_s: float = 180) -> subprocess.CompletedProcess[str]:
    """Run `bert-ds` to its end in a process that has torch and DeepSpeed imported already.

    For what one process does with its arguments. That the command itself starts is seen where `run`
    does it.
    """
    words = [str(argument) for argument in arguments]
    with tempfile.TemporaryDirectory() as folder:
        process = forking().Process(target=_main_of_bert_ds, args=(words, folder, environment()))
        process.start()
        process.join(timeout_s)
        if process.is_alive():
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(words, timeout_s)
        assert process.exitcode is not None
        stdout, stderr = ((Path(folder) / name).read_text() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(words, process.exitcode, stdout, stderr)


def _main_of_bert_ds(words: list[str], folder: str, variables: dict[str, str]) -> None:
    os.setsid()
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(variables)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(Path(folder) / name, os.O_WRONLY | os.O_CREAT), number)
    torch.set_num_threads(1)  # OMP_NUM_THREADS is read when torch is imported
    sys.exit(main(words))


def start(*arguments: str | Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a command in a process group of its own."""
    return subprocess.Popen(
        [str(argument) for argument in arguments],
        cwd=ROOT,
        env=environment(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the whole group, and wait until nothing of it is left."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # the group has ended by itself
    process.communicate()
    for _ in range(200):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("processes of the group outlive SIGKILL")


def wait_until(
    condition: Callable[[], bool], process: subprocess.Popen[str], timeout_s: float = 120
) -> None:
    """Wait for a condition while the process runs."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if process.poll() is not None:
            raise AssertionError(f"ended early: {process.communicate()}")
        if time.monotonic() > deadline:
            kill(process)
            raise AssertionError("waited too long")
        time.sleep(0.01)


def deepspeed_pretrain(
    num_ranks: int, recipe: Path, data: Path, output_dir: Path, *more: str
) -> Sequence[str | Path]:
    """The command line of a pretraining under the deepspeed launcher on this host."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [
        "deepspeed", "--num_accelerators", str(num_ranks), "--master_port", str(port), "--quiet",
        "--module", "bert_ds", "pretrain", "--recipe", recipe, "--data", data,
        "--output-dir", output_dir, *more,
    ]  # fmt: skip
