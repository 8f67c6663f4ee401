"""The command in this process: exit codes, streams, imports."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep.cli import main

Prepare = Callable[..., list[Path]]


def shards_arguments(corpus: Path, vocabulary: Path, output: Path) -> list[str]:
    return [
        *("shards", "--input", str(corpus), "--vocab", str(vocabulary)),
        *("--output-dir", str(output), "--sequence-length", "64", "-j", "1"),
    ]


def test_shards_verify_show_stats_in_a_row(
    corpus: Path, vocabulary_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "D"
    assert main(shards_arguments(corpus, vocabulary_path, output)) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{output}/seq64\n"
    assert "map: " in captured.err
    assert main(["verify", f"{output}/seq64"]) == 0
    assert "all as the manifest says" in capsys.readouterr().out
    assert main(["show", f"{output}/seq64", "--rows", "2", "--split", "valid"]) == 0
    assert capsys.readouterr().out.count("\nrow ") == 2
    assert main(["stats", f"{output}/seq64"]) == 0
    assert "tokens a row" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "code", "message"),
    [
        (["--input", "nowhere.txt"], 2, "--input nowhere.txt: no such file"),
        (["--vocab", "nowhere.txt"], 1, "vocabulary nowhere.txt: cannot be read"),
        (["--max-predictions", "3", "4"], 2, "has 2 values, --sequence-length 1"),
        (["--sequence-length", "4"], 2, "--sequence-length 4: must lie"),
        (["-j", "0"], 2, "-j 0"),
        (["--sentences", "guess"], 2, "--sentences guess: must be rules"),
        (["--weights", "1", "2"], 2, "--weights has 2 values"),
        (["--recipe", "nowhere"], 2, "--recipe nowhere: no recipe"),
        (["--memory-per-worker", "5M"], 2, "--memory-per-worker 5242880: must lie"),
        (["--output-dir", "/proc/none/D"], 1, "cannot be written"),
    ],
)
def test_errors_go_to_standard_error_with_their_exit_code(
    corpus: Path,
    vocabulary_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changed: list[str],
    code: int,
    message: str,
) -> None:
    arguments = [*shards_arguments(corpus, vocabulary_path, tmp_path / "D"), *changed]
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "bert-prep: error: " in captured.err
    assert message in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["verify"], ["shards", "--seed", "x"]])
def test_bad_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as got:
        main(arguments)
    assert got.value.code == 2
    assert "usage: bert-prep" in capsys.readouterr().err


def test_commands_that_read_a_folder_say_that_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("verify", "show", "stats"):
        assert main([command, str(tmp_path / "none")]) == 1
        assert "no such folder" in capsys.readouterr().err


def test_zero_rows_to_show_is_bad_usage(
    prepare: Prepare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder,) = prepare(tmp_path / "D")
    assert main(["show", str(folder), "--rows", "0"]) == 2
    assert "--rows 0" in capsys.readouterr().err


def test_the_package_imports_neither_torch_nor_bert_ds_and_help_imports_no_numpy() -> None:
    script = (
        "import sys, pkgutil, importlib, data_prep, data_prep.cli\n"
        "assert not {'numpy', 'tokenizers', 'tqdm'} & set(sys.modules)\n"
        "for module in pkgutil.walk_packages(data_prep.__path__, 'data_prep.'):\n"
        "    importlib.import_module(module.name)\n"
        "assert not {'torch', 'bert_ds', 'mpi4py', 'zstandard', 'webdataset'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_bench_prints_and_writes_what_it_measured(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bench.json"
    arguments = ["bench", str(corpus), "--vocab-size", "200", "-j", "1", "2", "--repeats", "1"]
    assert main([*arguments, "--sequence-length", "64", "--json", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "1 files to rows of 64" in lines[0]
    assert lines[1].split()[:5] == ["-j", "s", "MB/s", "rows/s", "peak"]
    assert "-j 2 is " in lines[-1]
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
    assert [run["jobs"] for run in runs] == [1, 2]
    for run in runs:
        assert list(run["stages_s"]) == ["plan", "map", "group", "reduce", "finalise"]
        assert 0 < sum(run["stages_s"].values()) < run["total_s"]
        assert 50 < run["peak_mib"] < 2000
        assert run["rows"] == runs[0]["rows"] > 50
    assert main(["bench", str(corpus), "--repeats", "0"]) == 2
    assert main(["bench", "nowhere.txt"]) == 2
    broken = tmp_path / "broken.txt"
    broken.write_bytes(b"\xff")
    assert main(["bench", str(broken), "--repeats", "1"]) == 1
    assert "not UTF-8" in capsys.readouterr().err


def test_bench_measures_what_a_file_costs(
    corpus: Path, vocabulary_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bench.json"
    arguments = ["bench", str(corpus), "--vocab", str(vocabulary_path), "--repeats", "1"]
    assert main([*arguments, "--files", "300", "20", "--json", str(path)]) == 0
    heading, names, few, many = capsys.readouterr().out.splitlines()
    assert "files of one document to rows of 128" in heading
    assert names.split()[:4] == ["files", "MB", "CPU", "s"]
    assert (few.split()[0], many.split()[0]) == ("20", "300")
    assert "us CPU" in many
    assert "bytes of memory" in many
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
    assert [run["files"] for run in runs] == [20, 300]
    for run in runs:
        assert 0 < run["cpu_s"]
        assert 50 < run["peak_mib"] < 2000
    assert runs[1]["manifest_bytes"] < runs[0]["manifest_bytes"] + 500
    assert runs[1]["input_bytes"] > 10 * runs[0]["input_bytes"]
    assert main([*arguments, "--files", "0"]) == 2
    assert "--files, --repeats and -j must be at least 1" in capsys.readouterr().err


def test_timings_are_written_where_they_are_asked_for(
    corpus: Path, vocabulary_path: Path, tmp_path: Path
) -> None:
    path = tmp_path / "t.json"
    arguments = shards_arguments(corpus, vocabulary_path, tmp_path / "D")
    assert main([*arguments, "--timings", str(path)]) == 0
    assert set(json.loads(path.read_text(encoding="utf-8"))) == {"stages_s", "peak_mib", "cpu_s"}
