"""`bert-prep` as a user runs it: killed, interrupted, under MPI, on a full disk; the same bytes."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import data_prep

ROOT = Path(data_prep.__file__).parents[1]
COMMAND = [sys.executable, "-m", "data_prep"]
TIMEOUT_S = 120


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run(
    arguments: list[str], launcher: list[str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*(launcher or []), *COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment(),
    )


def folder_bytes(folder: Path) -> dict[str, bytes]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A corpus of 5 MB in three files and its vocabulary, as arguments of `shards`."""
    folder = tmp_path_factory.mktemp("prep")
    generator = np.random.default_rng(0)
    words = [f"w{number}x" for number in range(2000)]
    for name in ("a.txt", "b.txt", "c.txt"):
        documents = []
        for number in range(300):
            chosen = generator.choice(words, (60, 12)).tolist()
            documents.append("\n".join(f"In {name} {number} {' '.join(row)}." for row in chosen))
        (folder / name).write_text("\n\n".join(documents), encoding="utf-8")
    vocabulary = folder / "vocab" / "vocab.txt"
    made = run(
        ["vocab", "--input", str(folder / "a.txt"), "--output", str(vocabulary)],
    )
    assert made.returncode == 0, made.stderr
    assert "pieces" in made.stdout
    inputs = [str(folder / name) for name in ("a.txt", "b.txt", "c.txt")]
    return [
        *("shards", "--input", *inputs, "--vocab", str(vocabulary), "--sequence-length", "64"),
        *("128", "--duplicate-factor", "1", "--valid-fraction", "0.1"),
    ]


@pytest.fixture(scope="module")
def undisturbed(arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed preparation in one process."""
    folder = tmp_path_factory.mktemp("expected") / "D"
    made = run([*arguments, "--output-dir", str(folder), "-j", "1"])
    assert made.returncode == 0, made.stderr
    assert made.stdout == f"{folder}/seq64\n{folder}/seq128\n"
    assert len(folder_bytes(folder)) >= 8
    return folder


@pytest.fixture(scope="module")
def expected(undisturbed: Path) -> dict[str, bytes]:
    """The bytes of an undisturbed preparation."""
    return folder_bytes(undisturbed)


def started(arguments: list[str], folder: Path, until: str) -> subprocess.Popen[str]:
    """A preparation in a process group of its own, once a file `until` of its work is there."""
    process = subprocess.Popen(
        [*COMMAND, *arguments, "--output-dir", str(folder), "-j", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    while process.poll() is None and not list(folder.glob(f"work/{until}")):
        time.sleep(0.001)
    return process


def test_a_job_killed_in_every_stage_ends_with_the_same_bytes(
    arguments: list[str], expected: dict[str, bytes], tmp_path: Path
) -> None:
    for until in ("plan.json", "map/*.json", "groups/*.json", "reduce/*.json"):
        process = started(arguments, tmp_path / "D", until)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == -signal.SIGKILL
    made = run([*arguments, "--output-dir", str(tmp_path / "D"), "-j", "2"])
    assert made.returncode == 0, made.stderr
    assert "resuming an interrupted preparation" in made.stderr
    assert folder_bytes(tmp_path / "D") == expected


@pytest.mark.slow
def test_a_job_killed_twenty_times_at_random_moments_ends_with_the_same_bytes(
    arguments: list[str], expected: dict[str, bytes], tmp_path: Path
) -> None:
    folder, moments, kills = tmp_path / "D", random.Random(0), 0
    while kills < 20:
        process = started(arguments, folder, "plan.json")
        time.sleep(moments.uniform(0, 0.7))
        if process.poll() is not None:  # it was faster: the next one starts from nothing
            assert process.returncode == 0
            assert folder_bytes(folder) == expected
            shutil.rmtree(folder)
        else:
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
        process.communicate(timeout=TIMEOUT_S)
    made = run([*arguments, "--output-dir", str(folder), "-j", "2"])
    assert made.returncode == 0, made.stderr
    assert folder_bytes(folder) == expected


def stopped_at_work(running: Path) -> int | None:
    """Stops the worker that says in `running` what it does; None where it has ended the task."""
    pid = int(running.name.rpartition("-")[2])
    try:
        os.kill(pid, signal.SIGSTOP)
    except ProcessLookupError:
        return None
    if running.exists() and running.read_text(encoding="utf-8"):
        return pid
    os.kill(pid, signal.SIGCONT)
    return None


def test_a_killed_worker_is_reported_with_its_inputs_and_the_same_command_resumes(
    arguments: list[str], expected: dict[str, bytes], tmp_path: Path
) -> None:
    process = started(arguments, tmp_path / "D", "running/*")
    worker = None
    while process.poll() is None and worker is None:
        for path in (tmp_path / "D" / "work" / "running").glob("*"):
            worker = stopped_at_work(path)
            if worker is not None:
                break
    assert worker is not None
    os.kill(worker, signal.SIGKILL)  # as the kernel does where memory is short
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1, errors
    assert "a worker process died: it was killed, perhaps because memory ran out" in errors
    assert re.search(r"at work on: .*\.txt \(bytes \d+ to (\d+|the end)\)", errors)
    assert "Traceback" not in errors
    made = run([*arguments, "--output-dir", str(tmp_path / "D"), "-j", "2"])
    assert made.returncode == 0, made.stderr
    assert re.search(r"the run before ended while at work on .*\.txt", made.stderr)
    assert folder_bytes(tmp_path / "D") == expected


@pytest.mark.parametrize("until", ["plan.json", "map/*.spill", "groups/*.json"])
def test_ctrl_c_ends_promptly_without_traceback_and_the_same_command_goes_on(
    arguments: list[str], expected: dict[str, bytes], tmp_path: Path, until: str
) -> None:
    for _ in range(3):
        process = started(arguments, tmp_path / "D", until)
        start = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_S)
        assert time.monotonic() - start < 5
        if process.returncode != 0:
            break
        shutil.rmtree(tmp_path / "D")  # on a busy machine it had ended before the signal was sent
    assert process.returncode == 130, errors
    assert "bert-prep: interrupted; run the same command again" in errors
    assert "Traceback" not in errors
    made = run([*arguments, "--output-dir", str(tmp_path / "D"), "-j", "1"])
    assert made.returncode == 0, made.stderr
    assert folder_bytes(tmp_path / "D") == expected


def test_a_preparation_whose_output_nobody_reads_is_made_to_its_end(
    arguments: list[str], expected: dict[str, bytes], tmp_path: Path
) -> None:
    """As behind a `tee` that has died."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, *arguments, "--output-dir", str(tmp_path / "D"), "-j", "1"],
        stdout=writer,
        stderr=writer,
        timeout=TIMEOUT_S,
        env=environment(),
        check=False,
    )
    os.close(writer)
    assert done.returncode == 0
    assert folder_bytes(tmp_path / "D") == expected


def test_workers_end_when_the_job_is_killed(arguments: list[str], tmp_path: Path) -> None:
    process = started(arguments, tmp_path / "D", "map/*")
    process.kill()
    process.communicate(timeout=TIMEOUT_S)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and group_is_alive(process.pid):
        time.sleep(0.1)
    assert not group_is_alive(process.pid)


def group_is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_ranks_of_mpi_give_the_same_bytes(
    arguments: list[str], expected: dict[str, bytes], tmp_path: Path
) -> None:
    beside_python = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    mpiexec = shutil.which("mpiexec", path=beside_python)
    if mpiexec is None:
        pytest.skip("mpiexec is not installed (pip install mpich)")
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    folder = str(tmp_path / "D")
    made = run([*arguments, "--output-dir", folder], [mpiexec, "-n", "2"])
    assert made.returncode == 0, made.stderr
    assert made.stdout == f"{folder}/seq64\n{folder}/seq128\n"
    assert folder_bytes(tmp_path / "D") == expected
    refused = run([*arguments, "--output-dir", folder, "--seed", "1"], [mpiexec, "-n", "2"])
    assert refused.returncode == 1
    assert refused.stderr.count("made otherwise") == 1
    assert "Traceback" not in refused.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for the spills and some of the shards."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a file system needs root and leave to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_said_and_with_room_the_same_command_goes_on(
    arguments: list[str], expected: dict[str, bytes], small_disk: Path
) -> None:
    command = [*arguments, "--output-dir", str(small_disk / "D"), "-j", "2"]
    full = run(command)
    assert full.returncode == 1, full.stderr
    assert "the disk is full" in full.stderr
    assert "MiB free" in full.stderr
    assert "run the same command again" in full.stderr
    assert "Traceback" not in full.stderr
    remount = ["mount", "-o", "remount,size=40m", str(small_disk)]
    subprocess.run(remount, check=True)
    made = run(command)
    assert made.returncode == 0, made.stderr
    assert "resuming an interrupted preparation" in made.stderr
    assert folder_bytes(small_disk / "D") == expected


@pytest.mark.slow
def test_the_memory_of_a_worker_does_not_grow_with_the_text(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    words = [f"w{number}x" for number in range(2000)]
    sentences = [" ".join(row) + "." for row in generator.choice(words, (3000, 12)).tolist()]
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *words]) + "\n", "utf-8"
    )
    peaks = []
    for number, copies in enumerate((1, 1, 6)):  # the first may compile, which takes memory
        texts = []
        for _ in range(20 * copies):
            order = generator.permutation(len(sentences))
            lines = [sentences[index] for index in order]
            texts.append("\n\n".join("\n".join(lines[i : i + 30]) for i in range(0, 3000, 30)))
        path = tmp_path / f"{copies}.txt"
        path.write_text("\n\n".join(texts), encoding="utf-8")
        timings = tmp_path / f"{copies}.json"
        made = run(
            [
                *("shards", "--input", str(path), "--vocab", str(tmp_path / "vocab.txt")),
                *("--output-dir", str(tmp_path / f"D{number}"), "--sequence-length", "128"),
                *("-j", "1", "--timings", str(timings)),
            ]
        )
        assert made.returncode == 0, made.stderr
        peaks.append(json.loads(timings.read_text(encoding="utf-8"))["peak_mib"])
    assert peaks[2] < 1.1 * peaks[1]


def test_help_answers_at_once() -> None:
    start = time.monotonic()
    assert "bert-prep" in run(["--help"]).stdout
    assert "--duplicate-factor" in run(["shards", "--help"]).stdout
    assert time.monotonic() - start < 1.0  # two commands, 0.5 s each


def test_a_reader_that_leaves_early_is_no_error(undisturbed: Path) -> None:
    show = f"{sys.executable} -m data_prep show {undisturbed}/seq64 --rows 5000 | head -n 2"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", show],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0
    assert done.stderr == ""
