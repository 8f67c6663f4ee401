"""`launchers/demo.sh`, which `make demo` runs, on the real speeches with a short recipe."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.support.commands import BIN, ROOT, kill, run, start, wait_until
from tests.support.recipes import tiny_deepspeed, write_recipe

pytestmark = pytest.mark.slow


@pytest.fixture
def demo(tmp_path: Path) -> dict[str, str]:
    """Environment of a demo that keeps its data and its run in a folder of the test."""
    recipe = json.loads((ROOT / "ds_configs/bert-tiny-demo/recipe.json").read_text())
    recipe["model"] |= {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    recipe["model"]["intermediate_size"] = 64
    recipe["checkpoint"] = {"every_steps": 5}
    recipe["evaluation"] = {"max_sequences": 256}
    for phase, steps in zip(recipe["phases"], (20, 6), strict=True):
        phase["total_steps"] = steps
    write_recipe(tmp_path / "recipe", recipe, tiny_deepspeed(16, 8))
    return {
        "BIN": str(BIN),
        "DATA": str(tmp_path / "data"),
        "RUN": str(tmp_path / "run"),
        "RECIPE": str(tmp_path / "recipe"),
    }


def demo_is_whole(demo: dict[str, str], stdout: str) -> None:
    folder = Path(demo["RUN"])
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["world_size"] == 2
    assert [phase["sequence_length"] for phase in summary["phases"]] == [128, 512]
    assert summary["held_out"]["unigram_accuracy"] > 0.03
    assert (folder / "report.html").is_file()
    assert Path(summary["export"], "model.safetensors").is_file()
    assert "held-out" in stdout.lower()


@pytest.mark.long  # the same as after an interruption
def test_the_demo_makes_everything(demo: dict[str, str]) -> None:
    done = run("bash", ROOT / "launchers/demo.sh", env=demo)
    assert done.returncode == 0, done.stderr
    demo_is_whole(demo, done.stdout)


def test_an_interrupted_demo_goes_on_makes_everything_and_does_nothing_twice(
    demo: dict[str, str],
) -> None:
    folder = Path(demo["RUN"])
    metrics = folder / "metrics.jsonl"
    process = start("bash", ROOT / "launchers/demo.sh", env=demo)
    wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 8, process)
    os.killpg(process.pid, signal.SIGINT)  # Ctrl-C goes to the whole foreground group
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert 'everything that was done is kept; "make demo" resumes from there' in stdout
    assert "Ctrl-C: saving the state after this update; press it once more" in stderr
    assert "Traceback" not in stderr
    kill(process)  # nothing of it may be left
    again = run("bash", ROOT / "launchers/demo.sh", env=demo)
    assert again.returncode == 0, again.stderr
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [row["global_step"] for row in rows] == [*range(1, 21), *range(1, 7)]
    demo_is_whole(demo, again.stdout)
    stamps = {p: p.stat().st_mtime_ns for p in Path(demo["DATA"]).rglob("*.tar")}
    checkpoint = (folder / "checkpoints/latest").read_text()
    third = run("bash", ROOT / "launchers/demo.sh", env=demo)
    assert third.returncode == 0, third.stderr
    assert "is complete, nothing to do" in third.stdout
    assert "is up to date" in third.stdout
    assert {p: p.stat().st_mtime_ns for p in Path(demo["DATA"]).rglob("*.tar")} == stamps
    assert (folder / "checkpoints/latest").read_text() == checkpoint
