"""The distributions of a dataset folder as a picture: the one user of matplotlib here."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.contract.errors import UsageError
from data_prep.contract.manifest import SPLITS, Manifest, load_manifest
from data_prep.contract.quality import padding_share, unknown_share
from data_prep.running.files import atomic_file

_COLOURS = {"train": "#0072b2", "valid": "#d55e00"}  # Okabe and Ito


def check_picture(path: Path) -> None:
    """Raise UsageError where `draw_folder` could not write to `path`."""
    if path.suffix != ".png":
        raise UsageError(f"--plot {path}: the picture is a PNG; name it so.")
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install 'bert_ds[report]'.")


def draw_folder(folder: Path, path: Path) -> None:
    """Draw lengths of rows, and the shares that people look at.

    Args:
        folder: the dataset folder.
        path: a `.png` file.

    Raises:
        UsageError: matplotlib is not installed, or the name does not end in .png.
        DataError: the folder is no dataset, or a shard is damaged.
    """
    check_picture(path)
    import matplotlib
    from matplotlib.figure import Figure

    manifest = load_manifest(folder)
    with matplotlib.rc_context({"svg.hashsalt": "", "font.size": 9}):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        lengths, shares = figure.subplots(1, 2, width_ratios=[3, 2])
        _draw_lengths(lengths, manifest)
        _draw_shares(shares, manifest)
        figure.suptitle(f"{folder}: {manifest.train_totals.rows:,} training rows")
        with atomic_file(path) as file:
            figure.savefig(file, format="png", dpi=150, metadata={"Software": None})


def _draw_lengths(axes: Any, manifest: Manifest) -> None:
    """Draw the share of the rows by length."""
    for split in SPLITS:
        totals = manifest.totals(split)
        if not totals.rows:
            continue
        width = -(-manifest.sequence_length // 64)
        counts = np.array(totals.length_histogram[1:])
        counts = np.pad(counts, (0, -len(counts) % width)).reshape(-1, width).sum(axis=1)
        edges = np.arange(len(counts) + 1) * width + 1
        axes.stairs(counts / totals.rows, edges, color=_COLOURS[split], label=split)
    axes.set_xlabel("Tokens of a row")
    axes.set_ylabel("Share of the rows")
    axes.legend(frameon=False)


def _draw_shares(axes: Any, manifest: Manifest) -> None:
    """Draw bars for padding, labels, masks, unknown pieces and repeated rows."""
    splits = [split for split in SPLITS if manifest.totals(split).rows]
    for number, split in enumerate(splits):
        totals = manifest.totals(split)
        shares = {"padding": padding_share(manifest, totals)}
        if manifest.pair_label_name:
            shares[f"{manifest.pair_label_name} 1"] = totals.label_1 / totals.rows
        shares["masked tokens"] = totals.predictions / totals.tokens
        shares["unknown pieces"] = unknown_share(manifest, totals)
        shares["repeated rows"] = totals.repeated_rows / totals.rows
        places = np.arange(len(shares)) + 0.4 * number
        axes.barh(places, list(shares.values()), 0.35, color=_COLOURS[split], label=split)
        for place, share in zip(places, shares.values(), strict=True):
            axes.annotate(
                f"{share:.2%}", (share, place), xytext=(3, 0), textcoords="offset points",
                va="center", fontsize=7,
            )  # fmt: skip
        axes.set_yticks(np.arange(len(shares)) + 0.2 * (len(splits) - 1), list(shares))
    axes.set_xlim(0, 1)
    axes.invert_yaxis()
    axes.set_xlabel("Share")
