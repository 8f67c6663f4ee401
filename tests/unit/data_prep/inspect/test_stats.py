"""Distributions as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from data_prep.contract.errors import UsageError
from data_prep.contract.manifest import load_manifest
from data_prep.inspect.dataset import read_split
from data_prep.inspect.recipes import read_phases
from data_prep.inspect.stats import describe_folder
from data_prep.inspect.stats_plot import draw_folder
from tests.unit.data_prep.conftest import text_of

Prepare = Callable[..., list[Path]]


def test_stats_prints_the_shares_of_the_rows(folder: Path) -> None:
    text = "\n".join(describe_folder(folder))
    totals = load_manifest(folder).totals("train")
    assert f"train: {totals.rows} rows" in text
    assert f"tokens              {totals.tokens}" in text
    masked = kept = 0
    for _, block in read_split(folder, load_manifest(folder), "train"):
        start = np.cumsum(block.length, dtype=int) - block.length
        at = np.repeat(start, block.num_predictions) + block.masked_lm_positions
        masked += int((block.tokens[at] == 4).sum())
        kept += int((block.tokens[at] == block.masked_lm_ids).sum())
    assert f"[MASK] {masked / totals.predictions:.1%}" in text
    assert f"kept {kept / totals.predictions:.1%}" in text


def test_rows_that_repeat_are_warned_about(prepare: Prepare, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text_of(8) + "\n" + "It was the oil.\n\n" * 4, encoding="utf-8")
    (folder,) = prepare(tmp_path / "D", inputs=[path], pairs="none", valid_fraction=0)
    text = "\n".join(describe_folder(folder))
    rows = [tuple(row) for row in unmasked_rows(folder)]
    share = 1 - len(set(rows)) / len(rows)
    assert share > 0.1
    assert f"repeated rows       {share:.2%} have the text of another row" in text
    assert f"WARNING repeated rows: {share:.1%} of {len(rows)} train rows" in text


def unmasked_rows(folder: Path) -> Iterator[list[int]]:
    for _, block in read_split(folder, load_manifest(folder), "train"):
        tokens = block.tokens.copy()
        start = np.cumsum(block.length, dtype=int) - block.length
        at = np.repeat(start, block.num_predictions) + block.masked_lm_positions
        tokens[at] = block.masked_lm_ids
        for first, size in zip(start, block.length, strict=True):
            yield tokens[first : first + size].tolist()


def test_epochs_are_those_of_the_recipe(prepare: Prepare, tmp_path: Path) -> None:
    (folder,) = prepare(tmp_path / "D")
    rows = load_manifest(folder).train_totals.rows
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    phase = {"name": "only", "sequence_length": 64, "total_steps": 3 * rows, "deepspeed": "a.json"}
    (recipe / "recipe.json").write_text(json.dumps({"phases": [phase]}), encoding="utf-8")
    (recipe / "a.json").write_text('{"train_batch_size": 5}', encoding="utf-8")
    text = "\n".join(describe_folder(folder, recipe))
    assert f"only                {15 * rows} rows: 15 epochs, each text 30 times" in text
    (recipe / "a.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match=r"no recipe with phases.*train_batch_size"):
        list(describe_folder(folder, recipe))
    shipped = Path(__file__).parents[4] / "ds_configs" / "bert-large"
    assert [phase.rows for phase in read_phases(shipped)] == [65_536 * 7_038, 32_768 * 1_563]
    assert read_phases(Path("bert-large")) == read_phases(shipped)
    assert read_phases(None)[0].rows == 65_536 * 7_038


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_distributions_are_drawn(prepare: Prepare, tmp_path: Path) -> None:
    (folder,) = prepare(tmp_path / "D")
    draw_folder(folder, tmp_path / "a.png")
    draw_folder(folder, tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with pytest.raises(UsageError, match="name it so"):
        draw_folder(folder, tmp_path / "a.svg")
