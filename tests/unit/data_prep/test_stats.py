"""Distributions as text."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from data_prep.dataset import read_split
from data_prep.manifest import load_manifest
from data_prep.stats import describe_folder


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
