"""Draws the figure of `bert-ds bench exactness` as SVG; imports matplotlib when drawing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bert_ds.bench.exactness import ExactnessBench
from bert_ds.errors import ConfigError

# Okabe and Ito's colours, which people with colour-blindness can distinguish.
_BLUE, _GREY = "#0072b2", "#555555"
_NAIVE = ("#d55e00", "#a3508a", "#007a5a", "#b08a10")


def draw(bench: ExactnessBench, path: Path) -> None:
    """Write the figure: weight errors by update, and the last trust ratios by parameter.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as err:
        raise ConfigError(
            "--plot needs matplotlib, which is not installed; pip install 'bert_ds[report]'"
        ) from err
    with matplotlib.rc_context({"svg.hashsalt": "bert_ds", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(9.0, 3.4), layout="constrained")
        FigureCanvasSVG(figure)
        errors, ratios = figure.subplots(1, 2, width_ratios=(1.0, 1.2))
        _draw_errors(errors, bench)
        _draw_ratios(ratios, bench)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r"[ \t]+\n", "\n", text), encoding="utf-8")


def _draw_errors(axes: Any, bench: ExactnessBench) -> None:
    steps = range(1, bench.num_updates + 1)
    exact = [each for each in bench.trajectories if each.ranks and each.is_exact]
    naive = [each for each in bench.trajectories if not each.is_exact]
    for each, color in zip(naive, _NAIVE * len(naive), strict=False):
        axes.plot(steps, each.errors, color=color, label=each.label, linewidth=1.4)
    for place, each in enumerate(exact):
        counts = ", ".join(str(e.ranks) for e in exact)
        label = f"exact, {counts} ranks" if place == 0 else None
        axes.plot(steps, each.errors, color=_BLUE, label=label, linewidth=1.4)
    axes.set_yscale("log")
    axes.set_ylim(1e-8, 2.0)
    axes.set_xlabel("update")
    axes.set_title("Distance from per-tensor LAMB's weights,\nas a share of the way", fontsize=9)
    axes.legend(fontsize=8, frameon=False, loc="center right")


def _draw_ratios(axes: Any, bench: ExactnessBench) -> None:
    reference = bench.trajectories[0].ratios
    order = sorted(reference, key=lambda name: reference[name])
    places = range(len(order))
    axes.plot(places, [reference[n] for n in order], "o", color=_GREY, ms=5, mfc="none",
              label="per tensor")  # fmt: skip
    naive = [each for each in bench.trajectories if not each.is_exact]
    for each, color in zip(naive, _NAIVE * len(naive), strict=False):
        axes.plot(places, [each.ratios[n] for n in order], ".", color=color, ms=4, label=each.label)
    exact = [each for each in bench.trajectories if each.ranks and each.is_exact][-1]
    axes.plot(places, [exact.ratios[n] for n in order], "x", color=_BLUE, ms=4, label=exact.label)
    axes.set_yscale("log")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("decayed parameters, by their ratio")
    axes.set_title(f"Trust ratios in update {bench.num_updates}", fontsize=9)
    axes.legend(fontsize=8, frameon=False, loc="upper left")
