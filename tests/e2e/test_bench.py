"""`bert-ds bench`: what it prints, writes, and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bert_ds.cli import main
from bert_ds.config.loading import load_run_config
from bert_ds.plan import num_parameters
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
        # no C++ compiler: to build DeepSpeed's Adam and torch.compile's code takes two minutes
        env={"CXX": "/nonexistent/c++"},
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
    for name in ("DeepSpeedCPUAdam", "LAMB, exact, plain operations through torch.compile"):
        assert by_name[name]["note"].startswith("not available: ")
        assert by_name[name]["ratio"] is None
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
        ways = [(each["batches"], each["masking"]) for each in found["measurements"]]
        assert ways == [(batches, kind) for kind in kinds for batches in ("packed", "padded")]
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


@pytest.mark.parametrize("stage", [pytest.param(0, marks=pytest.mark.long), 1])
def test_checkpoint_times_every_stage_and_leaves_nothing(place: Path, stage: int) -> None:
    (place / "scratch").mkdir(exist_ok=True)
    done = run(
        "bert-ds", "bench", "checkpoint", "--recipe", place / "recipe", "--folder",
        place / "scratch", "--repeats", "2", "--json", place / "k.json", "--set",
        f"deepspeed.zero_optimization.stage={stage}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((place / "k.json").read_text())
    assert list(found["seconds"]) == ["put together", "written", "checked", "loaded"]
    assert all(seconds > 0 for seconds in found["seconds"].values())
    config = load_run_config(place / "recipe").model
    assert found["gigabytes"] * 1e9 > 3 * 4 * num_parameters(config)  # weights and two moments
    assert not list((place / "scratch").iterdir())
    assert "training waits for it" in done.stdout
    nowhere = run(
        "bert-ds", "bench", "checkpoint", "--recipe", place / "recipe", "--folder",
        place / "absent",
    )  # fmt: skip
    assert nowhere.returncode == 2
    assert "no folder that can be written to" in nowhere.stderr


def test_step_trains_ours_and_hugging_faces_on_the_same_rows(place: Path) -> None:
    done = run(
        "bert-ds", "bench", "step", "--recipe", place / "recipe", "--data", place / "data",
        "--compare", "hf", "--micro-batch-size", "4", "--repeats", "2", "--threads", "1", "--json",
        place / "s.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((place / "s.json").read_text())
    ours, theirs = found["measurements"]
    assert (ours["name"], theirs["name"]) == ("bert_ds", "transformers")
    for each in (ours, theirs):
        assert each["sequences_per_s"] == pytest.approx(8 / each["update_s"])
        assert each["peak_mib"] > 0
    assert found["ratio"] > 0
    assert (found["micro_batch_size"], found["accumulation"], found["repeats"]) == (4, 2, 2)
    assert 0.3 < found["real_tokens_share"] < 1
    apart = found["agreement"]
    assert apart["our_loss"] == pytest.approx(apart["their_loss"], rel=1e-6)
    assert apart["our_loss"] > 3
    assert 0 < apart["gradient_difference"] < 1e-4
    assert f"bert_ds is {found['ratio']:.2f} times as fast" in done.stdout
    planned = run(
        "bert-ds", "plan", "--recipe", place / "recipe", "--world-size", "2", "--measured",
        place / "s.json",
    )  # fmt: skip
    assert planned.returncode == 2
    assert "measured on CPU, which is none of the GPUs that are known" in planned.stderr


def test_step_compares_our_own_model_under_another_setting(place: Path) -> None:
    done = run(
        "bert-ds", "bench", "step", "--recipe", place / "recipe", "--data", place / "data",
        "--compare", "execution.batch_layout=packed", "--micro-batch-size", "4", "--repeats", "2",
        "--accumulation", "3", "--threads", "1", "--json", place / "c.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((place / "c.json").read_text())
    names = [each["name"] for each in found["measurements"]]
    assert names == ["bert_ds", "execution.batch_layout=packed"]
    assert found["execution"]["batch_layout"] == "unpadded"
    assert found["ratio"] > 0
    assert found["agreement"]["gradient_difference"] < 1e-5


@pytest.mark.parametrize(
    ("compare", "message"),
    [
        ("packed", "--compare must be hf or a setting of execution, such as"),
        ("execution.batch_layout=unpadded", "the recipe has that setting already"),
        ("execution.batch_layout=rags", "'execution.batch_layout': Input should be 'unpadded'"),
        ("execution.deterministic=true", "measure it with --set, once without and once with it"),
        ("execution.layer_norm=apex", "execution.layer_norm is 'apex', which has kernels for GPUs"),
    ],
)
def test_step_refuses_what_it_cannot_compare(
    place: Path, capsys: pytest.CaptureFixture[str], compare: str, message: str
) -> None:
    command = [
        "bench", "step", "--recipe", place / "recipe", "--data", place / "data", "--compare",
        compare,
    ]  # fmt: skip
    assert main([str(word) for word in command]) == 2
    assert message in capsys.readouterr().err


def test_step_alone_measures_full_rows_or_says_that_there_are_too_few(place: Path) -> None:
    command = [
        "bert-ds", "bench", "step", "--recipe", place / "recipe", "--data", place / "data",
        "--full-rows", "--accumulation", "1", "--repeats", "1",
    ]  # fmt: skip
    done = run(*command, "--micro-batch-size", "1", "--json", place / "f.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((place / "f.json").read_text())
    assert found["real_tokens_share"] == 1
    assert [each["name"] for each in found["measurements"]] == ["bert_ds"]
    assert found["ratio"] is None
    done = run(*command, "--micro-batch-size", "99")
    assert done.returncode == 1
    assert "training rows of 32 tokens, and an update takes 99" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--phase", "7"], 2, "--phase 7: the recipe has phases 0 to"),
        (["--accumulation", "0"], 2, "--accumulation must be at least 1, it is 0"),
    ],
)
def test_step_refuses_what_it_cannot_measure(
    place: Path, arguments: list[str], code: int, message: str
) -> None:
    done = run(
        "bert-ds", "bench", "step", "--recipe", place / "recipe", "--data", place / "data",
        *arguments,
    )  # fmt: skip
    assert done.returncode == code
    assert message in done.stderr
