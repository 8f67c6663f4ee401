"""A run folder in every state gives a report; what is missing is said in words."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from bert_ds.errors import CheckpointError, ConfigError
from bert_ds.report import summary_table, write_report
from bert_ds.report.record import read_run

Line = dict[str, Any]


def update(phase: str, step: int, **changes: Any) -> Line:
    """One line of metrics.jsonl: batches of 64 sequences, MLM loss 10 - step / 100."""
    line: Line = {
        "phase": phase, "global_step": step, "skipped_steps": 0, "samples_seen": 64 * step,
        "tokens_seen": 8000 * step, "loss": 10.7 - step / 100, "mlm_loss": 10 - step / 100,
        "nsp_loss": 0.7, "mlm_accuracy": step / 1000, "nsp_accuracy": 0.5,
        "learning_rate": 1e-5 * step, "grad_norm": 1.0 + step % 3, "loss_scale": None,
        "step_s": 0.5, "data_wait_s": 0.05, "sequences_per_s": 128.0 + step % 2,
        "tokens_per_s": 16000.0,
    }  # fmt: skip
    return line | changes


def phase_entry(name: str, length: int, steps: int, **changes: Any) -> Line:
    entry: Line = {
        "name": name, "sequence_length": length, "global_step": steps, "total_steps": steps,
        "skipped_steps": 0, "samples_seen": 64 * steps, "tokens_seen": 8000 * steps,
        "train_batch_size": 64, "final_loss": 6.12, "duration_s": 200.3,
    }  # fmt: skip
    return entry | changes


def complete_summary(**changes: Any) -> Line:
    held_out = {
        "sequence_length": 512, "mlm_accuracy": 0.45, "mlm_loss": 3.213, "nsp_accuracy": 0.873,
        "unigram_accuracy": 0.0625, "predictions": 41234, "sequences": 1024,
    }  # fmt: skip
    summary: Line = {
        "recipe": "tiny-demo", "world_size": 2, "zero_stage": 1, "precision": "fp16",
        "phases": [phase_entry("phase1", 128, 120), phase_entry("phase2", 512, 30)],
        "held_out": held_out, "export": "hf-model", "dataset": {"documents": 1240, "seed": 42},
        "versions": {"bert_ds": "0.1.0", "torch": "2.9.0"}, "status": "complete",
    }  # fmt: skip
    return summary | changes


def both_phases() -> list[Line]:
    return [update("phase1", k) for k in range(1, 121)] + [
        update("phase2", k, loss_scale=65536.0) for k in range(1, 31)
    ]


def make_run(
    folder: Path, *, summary: Any = None, lines: list[Line] | None = None, config: Any = None
) -> Path:
    """Writes those of the three files that are given."""
    folder.mkdir(parents=True)
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    if lines is not None:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def full_run(folder: Path) -> Path:
    config = {"command": ["bert-ds", "pretrain", "--set", "note=a b"], "model": {"hidden_size": 64}}
    return make_run(folder, summary=complete_summary(), lines=both_phases(), config=config)


class Page(HTMLParser):
    """Tags, attributes and visible text of a page; every opened tag must be closed in order."""

    VOID = ("meta", "link")

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self._open: list[str] = []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert not self._open
        self.text = re.sub(r"\s+", " ", self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.text += data + " "


def test_a_full_run_gives_cards_curves_tables_and_the_command(tmp_path: Path) -> None:
    run_dir = full_run(tmp_path / "run")
    path = write_report(run_dir)
    assert path == run_dir / "report.html"
    page = Page(path)
    for expected in (
        "tiny-demo complete",
        "Run run, 2 ranks, ZeRO stage 1, fp16",
        "Held-out MLM accuracy 45.0% 7.2 x the unigram guess (6.2%)",
        "Held-out MLM loss 3.21 nats, over 41,234 masked positions",
        "Held-out NSP accuracy 87.3% over 1,024 sequences",
        "Sequences/s 128 / 128 median, phase1 / phase2",
        "Training time 6 min 41 s all phases",
        "Samples seen 9,600 1,200,000 tokens",
        "Updates 120 of 120 30 of 30",
        "Data wait, median 10.0% 10.0%",
        "documents 1,240",
        "torch 2.9.0",
        "Hugging Face model hf-model",
        "bert-ds pretrain --set 'note=a b'",
        "unigram guess 6.2%",
        "held-out 45.0%",
    ):
        assert expected in page.text
    for axis in (
        "Samples seen (sequences)", "Loss (nats/prediction)", "NSP loss (nats/sequence)",
        "MLM accuracy (%)", "NSP accuracy (%)", "Throughput (sequences/s)",
        "Data wait (% of step time)", "Learning rate (no unit)", "Gradient norm (L2, no unit)",
        "Loss scale (factor)",
    ):  # fmt: skip
        assert axis in page.text
    assert page.tags.count("svg") == 5
    assert sum(name == "aria-label" for name, _ in page.attributes) >= 5
    assert "To know about this run" not in page.text
    assert [entry.name for entry in run_dir.iterdir() if entry.name.endswith(".tmp")] == []


def test_the_page_loads_nothing_and_runs_nothing(tmp_path: Path) -> None:
    page = Page(write_report(full_run(tmp_path / "run")))
    assert "script" not in page.tags and "img" not in page.tags and "iframe" not in page.tags
    for name, value in page.attributes:
        assert not name.startswith("on")
        if name in ("href", "src", "xlink:href"):
            assert value.startswith(("#", "data:"))
    assert "@import" not in page.source and "http" not in page.source.replace("http-equiv", "")
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    first = write_report(full_run(tmp_path / "a" / "run")).read_bytes()
    second = write_report(full_run(tmp_path / "b" / "run"), tmp_path / "new" / "page.html")
    assert second.read_bytes() == first


def test_the_x_axis_goes_on_over_the_phases(tmp_path: Path) -> None:
    first, second = read_run(full_run(tmp_path / "run")).phases
    assert (first.x[0], first.x[-1]) == (64, 64 * 120)
    assert (second.x[0], second.x[-1]) == (64 * 121, 64 * 150)


def test_a_killed_run_without_summary_and_with_a_torn_last_line(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", lines=both_phases()[:130])
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"phase": "phase2", "global_st')
    page = Page(write_report(run_dir))
    for expected in (
        "run running or killed",
        "summary.json is missing.",
        "config.json is missing.",
        "Held-out accuracy - not evaluated",
        "Training time 1 min 05 s sum of the recorded steps",
        "Samples seen 8,320",
        "Updates 120 10",
    ):
        assert expected in page.text
    assert "unreadable" not in page.text
    assert page.tags.count("svg") == 4 + 1


def test_an_interrupted_run_says_where_it_stopped_and_what_was_not_made(tmp_path: Path) -> None:
    phases = [phase_entry("phase1", 128, 120), phase_entry("phase2", 512, 10, total_steps=30)]
    summary = complete_summary(status="interrupted", phases=phases, held_out=None, export=None)
    run_dir = make_run(tmp_path / "run", summary=summary, lines=both_phases()[:130], config={})
    page = Page(write_report(run_dir))
    for expected in (
        "tiny-demo interrupted",
        "phase2 stopped at update 10 of 30.",
        "There is no held-out evaluation.",
        "The model was not exported.",
    ):
        assert expected in page.text
    assert "unigram" not in page.text


def test_an_empty_metrics_file_gives_a_page_without_curves(tmp_path: Path) -> None:
    page = Page(write_report(make_run(tmp_path / "run", summary=complete_summary(), lines=[])))
    assert "metrics.jsonl holds no update yet, so there are no curves." in page.text
    assert "Held-out MLM accuracy 45.0%" in page.text
    assert "svg" not in page.tags


def test_a_torn_summary_and_broken_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", lines=[update("phase1", 1)])
    (run_dir / "summary.json").write_text('{"recipe": "tiny')
    with (run_dir / "metrics.jsonl").open("ab") as file:
        file.write(b'{"phase": "ph{"phase": "phase1"}\n[1]\n\xff\n{"phase": "phase1"}\n\n')
        file.write(json.dumps(update("phase1", 2)).encode() + b"\n")
    notes = read_run(run_dir).notes
    assert any(note.startswith("summary.json cannot be read and is left out (") for note in notes)
    assert "metrics.jsonl: 4 unreadable line(s) left out." in notes
    assert "Updates 2 " in Page(write_report(run_dir)).text


def test_updates_made_again_after_a_resume_are_shown_once(tmp_path: Path) -> None:
    lines = [update("phase1", k) for k in range(1, 8)]
    lines += [update("phase1", k, loss=1.0) for k in range(5, 10)]
    run = read_run(make_run(tmp_path / "run", lines=lines))
    assert run.phases[0].columns["global_step"].tolist() == list(range(1, 10))
    assert run.phases[0].columns["loss"][4:].tolist() == [1.0] * 5
    assert any("3 update(s) were made again after a resume" in note for note in run.notes)


def test_a_summary_older_than_the_metrics_does_not_hide_them(tmp_path: Path) -> None:
    summary = complete_summary(phases=[phase_entry("phase1", 128, 10)])
    run = read_run(make_run(tmp_path / "run", summary=summary, lines=both_phases()[:50]))
    assert run.status == "running or killed"
    assert run.phases[0].fact("global_step") == 50
    assert run.phases[0].fact("sequence_length") == 128
    assert any("goes further than summary.json" in note for note in run.notes)


def test_values_that_are_not_finite_are_not_drawn_and_said(tmp_path: Path) -> None:
    lines = [update("phase1", k, grad_norm=float("inf")) for k in range(1, 60)]
    lines[3]["loss"] = float("nan")
    page = Page(write_report(make_run(tmp_path / "run", lines=lines)))
    assert "phase1: 1 update(s) have no finite loss; not drawn." in page.text
    assert "Gradient norm" not in page.text
    assert not re.search(r"\b(nan|inf)\b", page.source.lower())


def test_a_spike_turns_the_axis_of_the_gradient_norm_logarithmic(tmp_path: Path) -> None:
    lines = both_phases()
    lines[5]["grad_norm"] = 1e4
    page = Page(write_report(make_run(tmp_path / "run", lines=lines)))
    assert "Gradient norm (L2, no unit), log scale" in page.text


def test_curves_that_do_not_move_have_an_axis_with_room_around_them(tmp_path: Path) -> None:
    lines = [update("phase1", k, data_wait_s=0.0, nsp_loss=0.7) for k in range(1, 60)]
    page = Page(write_report(make_run(tmp_path / "run", lines=lines)))
    # Without the room every tick of the NSP loss, constant but for rounding, would read 0.7.
    assert "0.68 0.7 0.72" in page.text


@pytest.mark.parametrize("num_updates", [1, 2, 19, 20])
def test_a_run_of_few_updates_is_drawn(tmp_path: Path, num_updates: int) -> None:
    lines = [update("phase1", k, loss_scale=1024.0) for k in range(1, num_updates + 1)]
    assert Page(write_report(make_run(tmp_path / "run", lines=lines))).tags.count("svg") == 5


def test_hostile_names_reach_neither_page_nor_terminal_as_markup(tmp_path: Path) -> None:
    evil = '<script>alert("1")</script>\x1b[31m$\\frac{$\ud800 & \u8bed\u8a00'
    summary = complete_summary(
        recipe=evil, precision=evil, export=evil, status=evil, dataset={evil: evil},
        versions={evil: [evil]}, phases=[phase_entry(evil, 128, 120)],
    )  # fmt: skip
    lines = [update(evil, k) for k in range(1, 121)] + [update("2 " + evil, 1)]
    config = {"command": evil, evil: evil}
    run_dir = make_run(tmp_path / "<b>'run", summary=summary, lines=lines, config=config)
    page = Page(write_report(run_dir))
    assert "script" not in page.tags and "b" not in page.tags
    assert '<script>alert("1")</script>?[31m$\\frac{$? & \u8bed\u8a00' in page.text
    assert "\x1b" not in summary_table(run_dir)


def test_values_of_another_type_than_expected_are_taken_as_missing(tmp_path: Path) -> None:
    summary = {"recipe": 3, "phases": [1, {"name": None, "samples_seen": "many"}], "held_out": [1],
               "world_size": True, "versions": "x", "export": {}}  # fmt: skip
    lines = [update("phase1", 1, loss="low", step_s=0, grad_norm=10**400)]
    run_dir = make_run(tmp_path / "run", summary=summary, lines=lines, config=[1])
    assert "Held-out accuracy - not evaluated" in Page(write_report(run_dir)).text
    assert summary_table(run_dir).startswith("run: status not recorded\n")


def test_a_run_on_rows_of_one_segment_says_nothing_of_nsp(tmp_path: Path) -> None:
    lines = [update("phase1", k, nsp_loss=None, nsp_accuracy=None) for k in range(1, 60)]
    held_out = complete_summary()["held_out"] | {"nsp_accuracy": None}
    run_dir = make_run(tmp_path / "run", summary=complete_summary(held_out=held_out), lines=lines)
    page = Page(write_report(run_dir))
    assert "NSP" not in page.text
    assert "Held-out MLM accuracy 45.0%" in page.text
    assert "Loss (nats/prediction)" in page.text
    assert "NSP" not in summary_table(run_dir)


def test_a_long_run_gives_a_page_of_bounded_size(tmp_path: Path) -> None:
    lines = [update("phase1", k, loss=10 + k * 7919 % 101) for k in range(1, 20_001)]
    page = Page(write_report(make_run(tmp_path / "run", lines=lines)))
    assert "20,000 updates thinned to 2,000 points a curve, each the mean of a bucket" in page.text
    assert len(page.source) < 1_000_000


def test_the_table_says_what_was_made_and_where(tmp_path: Path) -> None:
    run_dir = full_run(tmp_path / "run")
    write_report(run_dir)
    assert summary_table(run_dir) == (
        "tiny-demo: complete (2 ranks, ZeRO stage 1, fp16)\n"
        "\n"
        "phase   length     updates  samples  final loss  sequences/s        time\n"
        "phase1     128  120 of 120    7,680        6.12          128  3 min 20 s\n"
        "phase2     512    30 of 30    1,920        6.12          128  3 min 20 s\n"
        "\n"
        "held-out: MLM accuracy 45.0% (7.2 x the unigram guess, 6.2%), MLM loss 3.21, "
        "NSP accuracy 87.3%\n"
        "\n"
        f"run folder      {run_dir}\n"
        "exported model  hf-model\n"
        f"report          {run_dir / 'report.html'}\n"
    )


def test_without_matplotlib_the_error_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = full_run(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install matplotlib"):
        write_report(run_dir)
    assert not (run_dir / "report.html").exists()
    assert "tiny-demo" in summary_table(run_dir)


@pytest.mark.parametrize("report", [write_report, summary_table])
def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, report: Any) -> None:
    with pytest.raises(CheckpointError, match=r"no-such does not exist .* give the --output-dir"):
        report(tmp_path / "no-such")
    with pytest.raises(CheckpointError, match=r"holds no summary\.json, metrics\.jsonl or"):
        report(tmp_path)


def test_an_output_that_cannot_be_written_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    run_dir = full_run(tmp_path / "run")
    (tmp_path / "taken").mkdir()
    with pytest.raises(ConfigError, match=r"cannot be written to .*taken"):
        write_report(run_dir, tmp_path / "taken")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["run", "taken"]


def test_importing_the_report_loads_neither_torch_nor_matplotlib() -> None:
    code = "import sys, bert_ds.report; print(sorted({'torch', 'matplotlib'} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
