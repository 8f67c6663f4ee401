"""`bert-ds bench`: what it prints, writes, and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.commands import run
from tests.support.datasets import make_dataset
from tests.support.recipes import write_recipe


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    make_dataset(folder / "data" / "seq32", sequence_length=32, num_train=100)
    write_recipe(folder / "recipe")
    return folder


def test_exactness_shows_what_one_ratio_a_shard_does(place: Path) -> None:
    done = run(
        "bert-ds", "bench", "exactness", "--recipe", place / "recipe", "--data", place / "data",
        "--ranks", "1", "3", "--updates", "12", "--json", place / "e.json", "--plot",
        place / "e.svg",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "one ratio a shard, 3 ranks" in done.stdout
    found = json.loads((place / "e.json").read_text())["trajectories"]
    assert [(each["ranks"], each["is_exact"]) for each in found] == [
        (0, True), (1, True), (1, False), (3, True), (3, False),
    ]  # fmt: skip
    for each in found:
        assert len(each["losses"]) == len(each["errors"]) == 12
        if not each["is_exact"]:
            assert each["errors"][-1] > 1e-2
            assert each["ratios"] != pytest.approx(found[0]["ratios"], rel=0.05)
        elif each["ranks"]:
            assert each["errors"][-1] < 2e-6
            assert each["ratios"] == pytest.approx(found[0]["ratios"], rel=1e-5)
    texts = [e.text for e in ElementTree.parse(place / "e.svg").iter() if e.tag.endswith("}text")]
    assert "exact, 1, 3 ranks" in texts


@pytest.mark.slow
def test_optimizer_measures_every_way_or_says_why_not(place: Path) -> None:
    done = run(
        "bert-ds", "bench", "optimizer", "--recipe", place / "recipe", "--repeats", "2",
        "--threads", "1", "--json", place / "o.json", timeout_s=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((place / "o.json").read_text())
    assert found["num_threads"] == 1
    assert found["memory_gb_per_s"] > 0
    assert found["exact_over_naive"] > 0
    by_name = {each["name"]: each for each in found["measurements"]}
    assert len(by_name) == 7
    for name, each in by_name.items():
        assert name in done.stdout
        assert (each["median_s"] or 0) > 0 or each["note"].startswith("not available: ")
    assert by_name["LAMB, exact"]["note"].startswith("kernel cpu")
    adam = by_name["DeepSpeedCPUAdam"]
    assert adam["ratio"] in (1.0, None)
    # 28 bytes an element, of all elements
    exact = by_name["LAMB, exact"]
    expected = 28 * found["num_elements"] / exact["median_s"] / 1e9
    assert exact["gb_per_s"] == pytest.approx(expected)


def test_data_measures_every_way_of_reading(place: Path) -> None:
    arguments = ["--repeats", "1", "--json", place / "d.json"]
    masked = place / "data" / "seq32"
    unmasked = place / "unmasked"
    make_dataset(unmasked, num_train=100, is_masked=False)
    for folder, kinds in ((masked, [None]), (unmasked, [None, "token", "whole_word"])):
        done = run("bert-ds", "bench", "data", "--data", folder, *arguments)
        assert done.returncode == 0, done.stderr
        found = json.loads((place / "d.json").read_text())
        assert (found["sequence_length"], found["num_rows"]) == (32, 100)
        ways = [(each["batches"], each["reader_processes"]) for each in found["measurements"]]
        assert ways == [("packed", 0), ("padded", 0), ("packed", 1), ("packed", 2)] * len(kinds)
        assert [each["masking"] for each in found["measurements"]][::4] == kinds
        for each in found["measurements"]:
            assert f"{each['rows_per_s']:,.0f}" in done.stdout
            expected = each["rows_per_s"] * found["mean_length"]
            assert each["tokens_per_s"] == pytest.approx(expected)


def test_data_refuses_what_it_cannot_read(place: Path) -> None:
    nowhere = run("bert-ds", "bench", "data", "--data", place / "nowhere")
    assert (nowhere.returncode, "no such folder" in nowhere.stderr) == (1, True)
    once = run("bert-ds", "bench", "data", "--data", place / "data" / "seq32", "--repeats", "0")
    assert (once.returncode, "--repeats must be at least 1" in once.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "env", "message"),
    [
        (["--repeats", "0"], {}, "--repeats must be at least 1, it is 0"),
        (["--threads", "0"], {}, "--threads must be at least 1, it is 0"),
        (["--json", "/nowhere/x.json"], {}, "/nowhere/x.json cannot be written: no folder"),
        ([], {"RANK": "0", "WORLD_SIZE": "2"}, "measures one process, and 2 were started"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    place: Path, arguments: list[str], env: dict[str, str], message: str
) -> None:
    done = run("bert-ds", "bench", "optimizer", "--recipe", place / "recipe", *arguments, env=env)
    assert done.returncode == 2
    assert message in done.stderr
