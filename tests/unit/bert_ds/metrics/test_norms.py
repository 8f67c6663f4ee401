"""Trust ratios and norms by layer, as rows and TensorBoard show them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from bert_ds.metrics.meter import Meter, UpdateRecord
from bert_ds.metrics.norms import furthest_from_median, layer_of, norm_columns, norms_by_layer
from bert_ds.metrics.sinks import JsonLinesSink, TensorBoardSink
from bert_ds.optim.optimizer import LastNorms

NAMES = (
    "bert.embeddings.word_embeddings.weight",
    "bert.encoder.layer.0.output.dense.weight",
    "bert.encoder.layer.0.output.dense.bias",
    "cls.predictions.bias",
)


def norms(*ratios: float) -> LastNorms:
    """Norms of four parameters of which the biases are exempt."""
    values = torch.tensor(ratios, dtype=torch.float64)
    return LastNorms(
        NAMES, (False, False, True, True), values, values * 0 + 2.0, values * 0 + 3.0, values
    )


def test_columns_are_over_parameters_with_a_ratio_of_their_own() -> None:
    first, skipped, last = norm_columns(
        [norms(0.1, 0.5, 1.0, 1.0), None, norms(0.2, 0.4, 1.0, 1.0)], [0.1] * 3, by_layer=False
    )
    assert first == {"trust_ratio_min": 0.1, "trust_ratio_median": 0.3, "trust_ratio_max": 0.5}
    assert set(skipped.values()) == {None}
    assert last["trust_ratio_median"] == pytest.approx(0.3)
    assert last["trust_ratios"] == [0.2, 0.4]
    assert last["trust_ratios_furthest"] == {NAMES[0]: 0.2, NAMES[1]: 0.4}


def test_norms_by_layer_are_those_of_all_its_parameters_and_of_the_step() -> None:
    (columns,) = norm_columns([norms(0.1, 0.5, 1.0, 1.0)], [0.01], by_layer=True)
    assert columns["grad_norm_by_layer"] == pytest.approx(
        {
            "bert.embeddings": 3.0,
            "bert.encoder.layer.0": math.sqrt(2 * 3.0**2),
            "cls.predictions": 3.0,
        }
    )
    steps = columns["update_norm_by_layer"]
    assert steps["bert.embeddings"] == pytest.approx(0.01 * 0.1 * 2.0)
    assert steps["bert.encoder.layer.0"] == pytest.approx(math.hypot(0.01, 0.02))


def test_the_furthest_differ_by_the_largest_factor_up_or_down() -> None:
    ratios = {f"p{i}": 1.0 + 0.001 * i for i in range(20)} | {"low": 0.01, "high": 5.0, "zero": 0.0}
    found = list(furthest_from_median(ratios))
    assert found[:3] == ["zero", "low", "high"]
    assert len(found) == 10
    assert len(furthest_from_median({"a": 1.0, "broken": math.nan})) == 2
    assert furthest_from_median({}) == {}


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("bert.encoder.layer.11.attention.self.key.weight", "bert.encoder.layer.11"),
        ("bert.pooler.dense.bias", "bert.pooler"),
        ("weight", "weight"),
    ],
)
def test_layers_by_name(name: str, layer: str) -> None:
    assert layer_of(name) == layer


def test_a_layer_is_named_once() -> None:
    found = norms_by_layer(["a.b.w", "a.b.v", "a.c.w"], torch.tensor([3.0, 4.0, 1.0]).numpy())
    assert found == {"a.b": 5.0, "a.c": 1.0}


def record(step: int, found: LastNorms | None) -> UpdateRecord:
    return UpdateRecord(
        global_step=step, skipped_steps=0, samples_seen=8 * step, tokens_seen=9,
        num_answers={"mlm": 2, "nsp": 8},
        num_sequences=8, num_tokens=9, num_squared_lengths=81,
        sums=torch.ones(4, dtype=torch.float64),
        was_applied=True, learning_rate=0.1, grad_norm=None, loss_scale=None, norms=found,
        step_s=1.0, data_wait_s=0.0,
    )  # fmt: skip


def test_they_reach_the_file_and_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sinks: list[Any] = [
        JsonLinesSink(tmp_path / "metrics.jsonl", tmp_path / "evaluations.jsonl"),
        TensorBoardSink(tmp_path, "phase1", 0, 0),
    ]
    meter = Meter("phase1", lambda tensor: tensor, sinks, norms_by_layer=True)
    meter.add(record(1, norms(0.1, 0.5, 1.0, 1.0)))
    meter.add(record(2, None))
    meter.add(record(3, norms(0.2, math.inf, 1.0, 1.0)))
    meter.flush()
    sinks[1].close()

    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["trust_ratio_min"] for line in lines] == [0.1, None, 0.2]
    assert lines[2]["trust_ratio_max"] is None  # infinite, which JSON has not
    assert lines[2]["trust_ratios_furthest"][NAMES[0]] == 0.2
    assert "trust_ratios" not in lines[2]
    events = EventAccumulator(str(tmp_path / "phase1"))
    events.Reload()
    first = next(iter(events.Scalars("trust_ratio_median")))
    assert (first.step, first.value) == (8, pytest.approx(0.3))
    (histogram,) = events.Histograms("trust_ratio")
    assert (histogram.step, histogram.histogram_value.num) == (24, 1)
    assert [e.step for e in events.Scalars("grad_norm_by_layer/bert.encoder.layer.0")] == [8, 24]
    text = events.Tensors("trust_ratios_furthest_from_median/text_summary")[0]
    assert NAMES[1] in text.tensor_proto.string_val[0].decode()


def test_only_the_rank_that_writes_reads_them() -> None:
    class Unreadable:
        """Fails on any use."""

    sums: list[torch.Tensor] = []
    meter = Meter("phase1", lambda tensor: sums.append(tensor) or tensor, [])
    meter.add(record(1, Unreadable()))
    meter.flush()
    assert len(sums) == 1  # the other ranks' part of the flush
