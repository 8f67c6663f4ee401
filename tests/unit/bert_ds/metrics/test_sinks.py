"""Where rows go: the file, TensorBoard, the terminal."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from bert_ds.metrics.sinks import (
    JsonLinesSink,
    ProgressSink,
    TensorBoardSink,
    keep_rows,
    summarise,
)


def row(step: int, **changes: Any) -> dict[str, Any]:
    return {
        "phase": "phase1", "global_step": step, "skipped_steps": 0, "samples_seen": step * 8,
        "tokens_seen": step * 100, "loss": 7.0, "mlm_loss": 6.4, "nsp_loss": 0.6,
        "mlm_accuracy": 0.25, "nsp_accuracy": 0.5, "learning_rate": 1e-3, "grad_norm": 1.0,
        "loss_scale": None, "step_s": 0.5, "data_wait_s": 0.0, "sequences_per_s": 16.0,
        "tokens_per_s": 200.0, **changes,
    }  # fmt: skip


def test_rows_are_appended_as_json_lines(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path / "metrics.jsonl", tmp_path / "evaluations.jsonl")
    sink.write([row(1), row(2)])
    sink.write([row(3)])
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [row(1), row(2), row(3)]


def test_a_value_that_is_not_finite_is_null(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path / "m", tmp_path / "e")
    sink.write([row(1, loss=float("nan"), grad_norm=float("inf"))])
    assert json.loads((tmp_path / "m").read_text()) == row(1, loss=None, grad_norm=None)


def test_rows_after_a_checkpoint_and_a_torn_line_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    JsonLinesSink(path, tmp_path / "evaluations.jsonl").write([row(1), row(2), row(3)])
    path.write_text(path.read_text() + '{"phase": "pha')
    keep_rows(path, lambda each: each["global_step"] <= 2)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [row(1), row(2)]
    keep_rows(tmp_path / "nowhere.jsonl", lambda each: True)
    assert not (tmp_path / "nowhere.jsonl").exists()


def test_tensorboard_holds_the_scalars_over_the_samples_of_the_whole_run(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = TensorBoardSink(tmp_path, "phase2", samples_before=1000, samples_seen=0)
    sink.write([row(1), row(2, loss=6.5)])
    sink.close()
    events = EventAccumulator(str(tmp_path / "phase2"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1008, 7.0), (1016, 6.5)]
    assert "loss_scale" not in events.Tags()["scalars"]


def test_progress_off_a_terminal_is_a_plain_line_now_and_then() -> None:
    now, stream = [100.0], io.StringIO()
    sink = ProgressSink("phase1", 100, 0, stream, clock=lambda: now[0])
    for step in range(1, 31):
        now[0] += 1.0
        sink.write([row(step)])
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3  # one every ten seconds
    assert lines[0] == (
        "phase1 1/100  loss 7.000  mlm_acc 0.250  lr 1.00e-03  16 seq/s  1 min 39 s left"
    )
    now[0] += 1.0
    sink.write([row(100)])
    assert stream.getvalue().splitlines()[-1].startswith("phase1 100/100")


def test_progress_shows_skipped_updates_once() -> None:
    now, stream = [0.0], io.StringIO()
    sink = ProgressSink("phase1", 100, 0, stream, clock=lambda: now[0], skipped_steps=2)
    for step, skipped, scale in ((1, 2, 8192.0), (2, 5, 8192.0), (3, 5, 8192.0), (3, 6, None)):
        now[0] += 11.0
        sink.write([row(step) | {"skipped_steps": skipped, "loss_scale": scale}])
    first, second, third, fourth = stream.getvalue().splitlines()
    assert "  3 skipped, loss scale 8192  " in second
    assert "  1 skipped  " in fourth
    assert "skipped" not in first + third


def test_progress_shows_the_time_of_all_phases_where_more_follow() -> None:
    now, stream = [0.0], io.StringIO()
    sink = ProgressSink("phase1", 10, 0, stream, clock=lambda: now[0], later_work=2.5)
    now[0] = 10.0
    sink.write([row(2)])  # 5 s an update: 8 more, and as many again as 25
    assert stream.getvalue().rstrip().endswith("40 s left, 2 min 45 s in all phases")


EVALUATION = {
    "phase": "phase1", "global_step": 4, "samples_seen": 32, "mlm_loss": 5.0, "mlm_accuracy": 0.2,
    "nsp_accuracy": 0.75,
}  # fmt: skip


def test_evaluations_are_rows_of_a_file_scalars_and_a_line(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path, stream = tmp_path / "evaluations.jsonl", io.StringIO()
    board = TensorBoardSink(tmp_path, "phase1", samples_before=100, samples_seen=0)
    for sink in (
        JsonLinesSink(tmp_path / "metrics.jsonl", path),
        board,
        ProgressSink("phase1", 9, 0, stream),
    ):
        sink.write_evaluation(EVALUATION)
    board.close()
    assert json.loads(path.read_text()) == EVALUATION
    assert not (tmp_path / "metrics.jsonl").exists()
    events = EventAccumulator(str(tmp_path / "phase1"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("valid_mlm_accuracy")] == [
        (132, pytest.approx(0.2))
    ]
    assert set(events.Tags()["scalars"]) == {
        "valid_mlm_loss", "valid_mlm_accuracy", "valid_nsp_accuracy",
    }  # fmt: skip
    assert stream.getvalue() == (
        "phase1 4/9  held-out mlm_loss 5.000  mlm_acc 0.2000  nsp_acc 0.7500\n"
    )


def test_progress_on_a_terminal_is_a_bar() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    sink = ProgressSink("phase1", 10, 4, stream)
    sink.write([row(5), row(6)])
    sink.close()
    assert "phase1" in stream.getvalue()
    assert "6/10" in stream.getvalue()
    assert "mlm_acc 0.250" in stream.getvalue()


def test_the_rate_of_several_updates_is_sequences_over_seconds() -> None:
    rows = [row(1, step_s=1.0, sequences_per_s=8.0), row(2, step_s=3.0, sequences_per_s=8 / 3)]
    assert " 4 seq/s" in summarise(rows)
