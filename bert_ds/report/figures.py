"""Draws the curves of a run as SVG text, with matplotlib, which is imported when drawing.

All curves share one x axis: samples seen since the start of the run, over all phases. The same
record gives the same bytes with the same matplotlib version.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bert_ds.errors import ConfigError
from bert_ds.objectives import PRETRAINING
from bert_ds.report import formats
from bert_ds.report.curves import Floats, running_mean, thin
from bert_ds.report.record import PhaseRecord, RunRecord

RAW_POINTS = 2000
"""Most points of a curve over all phases."""
SMOOTH_POINTS = 500
"""Most points of a smoothed curve over all phases."""

# Okabe and Ito's colours, which people with colour-blindness can distinguish.
_BLUE, _ORANGE, _GREEN, _PURPLE = "#0072b2", "#d55e00", "#007a5a", "#a3508a"
_TERM_COLORS = (_BLUE, _ORANGE, _PURPLE, _GREEN)
_GREY = "#555555"
_WIDTH_IN, _PANEL_HEIGHT_IN = 5.0, 2.2
_AXES_WIDTH_PT, _CHARACTER_PT = 0.85 * 72 * _WIDTH_IN, 4.4
_MARKER_RECORDS = 40
_SMOOTHED_RECORDS = 20
_WIDE = 30


class Series(NamedTuple):
    """One curve."""

    label: str
    """Its entry in the legend."""
    color: str
    """Its colour, `#rrggbb`."""
    values: Callable[[PhaseRecord], Floats]
    """Returns its values in a phase, float64 [updates]."""
    is_smoothed: bool = True
    """Whether a running mean is drawn over it."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    label: str
    """Label of the y axis."""
    series: tuple[Series, ...]
    """The curves."""
    from_zero: bool = False
    """Whether the y axis begins at 0."""
    is_log2: bool = False
    """Whether the y axis is logarithmic, in powers of 2."""
    may_be_log: bool = False
    """Whether the y axis becomes logarithmic if a few spikes would flatten everything else."""
    level: tuple[str, float] | None = None
    """Label and value of a horizontal line."""
    held_out: tuple[str, float] | None = None
    """Label and value of a point at the end."""


class Figure(NamedTuple):
    """A drawn figure."""

    title: str
    """The heading."""
    caption: str
    """How to read the curves."""
    description: str
    """The content in words, for readers who cannot see it."""
    svg: str
    """The drawing."""


def draw_figures(run: RunRecord) -> list[Figure]:
    """Draw each figure for which the run has values; import matplotlib only if there are any.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    figures = []
    for title, panels in _plan(run):
        shown = [panel for panel in panels if _has_values(run, panel)]
        if shown:
            svg = _draw(run, title, shown)
            figures.append(Figure(title, _caption(run, shown), _description(run, shown), svg))
    return figures


def _column(name: str, scale: float = 1.0) -> Callable[[PhaseRecord], Floats]:
    return lambda phase: phase.columns[name] * scale


def _plan(run: RunRecord) -> list[tuple[str, list[Panel]]]:
    wait = Series("data wait", _PURPLE, lambda phase: 100 * phase.data_wait_share)
    rate = Series("sequences/s", _GREEN, _column("sequences_per_s"))
    return [
        ("Loss", _loss_panels(run)),
        ("Accuracy on training batches", _accuracy_panels(run)),
        ("Throughput", [
            Panel("Throughput (sequences/s)", (rate,), True),
            Panel("Data wait (% of step time)", (wait,), True),
        ]),
        ("Learning rate and gradient norm", [
            Panel("Learning rate (no unit)",
                  (Series("learning rate", _BLUE, _column("learning_rate"), False),), True),
            Panel("Gradient norm (L2, no unit)",
                  (Series("gradient norm", _ORANGE, _column("grad_norm")),), True,
                  may_be_log=True),
        ]),
        ("Loss scale", [
            Panel("Loss scale (factor)",
                  (Series("loss scale", _PURPLE, _column("loss_scale"), False),), is_log2=True),
        ]),
    ]  # fmt: skip


def _loss_panels(run: RunRecord) -> list[Panel]:
    """Return the loss with that of the leading term, and a panel for each of the other terms."""
    series = [
        Series(term.label, color, _column(term.loss))
        for term, color in zip(PRETRAINING.terms, _TERM_COLORS, strict=False)
    ]
    panels = [
        Panel(f"{term.label} loss (nats/{term.answer})", (each,))
        for term, each in zip(PRETRAINING.terms, series, strict=True)
    ]
    shown = [each for each, panel in zip(series, panels, strict=True) if _has_values(run, panel)]
    first = series[:1]
    if len(shown) > 1:
        whole = " + ".join(each.label for each in shown)
        first = [Series(whole, _GREEN, _column("loss")), *first]
    leading = Panel(f"Loss (nats/{PRETRAINING.leading.answer})", tuple(first))
    return [leading, *panels[1:]]


def _accuracy_panels(run: RunRecord) -> list[Panel]:
    """Return a panel for the accuracy of each term, with held-out value and trivial guess."""
    panels = []
    for term, color in zip(PRETRAINING.terms, _TERM_COLORS, strict=False):
        _, accuracy, guess = run.held_out_of(term)
        level = None
        if guess is not None and term.guess is not None:
            level = (term.guess.label, 100 * guess)
        panels.append(
            Panel(
                f"{term.label} accuracy (%)",
                (Series(term.label, color, _column(term.accuracy, 100)),),
                from_zero=term == PRETRAINING.leading,
                level=level,
                held_out=None if accuracy is None else ("held-out", 100 * accuracy),
            )
        )
    return panels


def _has_values(run: RunRecord, panel: Panel) -> bool:
    return any(
        bool(np.isfinite(series.values(phase)).any())
        for series in panel.series
        for phase in run.phases
    )


def _smoothing_window(phase: PhaseRecord) -> int:
    return max(5, phase.num_records // 50) | 1


def _caption(run: RunRecord, panels: list[Panel]) -> str:
    parts = []
    num_records = sum(phase.num_records for phase in run.phases)
    smoothed = [phase for phase in run.phases if phase.num_records >= _SMOOTHED_RECORDS]
    has_smooth = bool(smoothed) and any(s.is_smoothed for panel in panels for s in panel.series)
    if num_records > RAW_POINTS:
        parts.append(
            f"{formats.count(num_records)} updates thinned to {formats.count(RAW_POINTS)} points "
            "a curve, each the mean of a bucket of neighbouring updates."
        )
    if has_smooth:
        windows = sorted({_smoothing_window(phase) for phase in smoothed})
        spelled = " and ".join(formats.count(window) for window in windows)
        parts.append(f"Light: before smoothing. Dark: running mean over {spelled} updates.")
    if sum(phase.num_records > 0 for phase in run.phases) > 1:
        parts.append("Dashed line: start of a phase.")
    return " ".join(parts)


def _description(run: RunRecord, panels: list[Panel]) -> str:
    """Return the first and last values of each curve, as means over a hundredth of it."""
    parts = []
    for panel in panels:
        for series in panel.series:
            values = np.concatenate([series.values(phase) for phase in run.phases])
            values = values[np.isfinite(values)]
            if len(values):
                edge = max(1, len(values) // 100)
                first, last = float(values[:edge].mean()), float(values[-edge:].mean())
                name = panel.label if len(panel.series) == 1 else f"{panel.label}, {series.label}"
                parts.append(f"{name}: from {formats.number(first)} to {formats.number(last)}")
    return "Line chart over samples seen. " + "; ".join(parts) + "."


def _draw(run: RunRecord, title: str, panels: list[Panel]) -> str:
    try:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure as Canvas
    except ImportError as err:
        raise ConfigError(
            "the plots of a report need matplotlib, which is not installed; "
            "run: pip install matplotlib"
        ) from err
    with matplotlib.rc_context(), warnings.catch_warnings():
        # Names of phases may be in a script that the metrics font lacks; the browser has fonts.
        warnings.filterwarnings("ignore", message=r"Glyph \d+")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "svg.fonttype": "none",  # text stays text: readable aloud, and in the page's font
                "svg.hashsalt": f"bert_ds {title}",
                "font.size": 9,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.edgecolor": _GREY,
                "axes.grid": True,
                "grid.color": "#e4e4e4",
                "grid.linewidth": 0.6,
                "legend.frameon": False,
            }
        )
        canvas = Canvas(figsize=(_WIDTH_IN, _PANEL_HEIGHT_IN * len(panels)), layout="constrained")
        FigureCanvasSVG(canvas)
        grid = canvas.subplots(len(panels), 1, sharex=True, squeeze=False)
        unit, unit_name = _x_unit(run)
        for axes, panel in zip(grid[:, 0], panels, strict=True):
            _draw_panel(axes, run, panel, unit)
        _label_phases(grid[0, 0], run, unit)
        grid[-1, 0].set_xlabel(f"Samples seen ({unit_name})")
        grid[-1, 0].xaxis.set_major_formatter(lambda x, _: formats.tick(x))
        written = io.StringIO()
        canvas.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(written.getvalue())


def _x_unit(run: RunRecord) -> tuple[float, str]:
    ends = [float(phase.x[-1]) for phase in run.phases if phase.num_records]
    for unit, name in ((1e9, "billion sequences"), (1e6, "million sequences")):
        if max(ends) >= 2 * unit:
            return unit, name
    return 1.0, "sequences"


def _draw_panel(axes: Any, run: RunRecord, panel: Panel, unit: float) -> None:
    is_log10 = panel.may_be_log and _is_wide(run, panel)
    for series in panel.series:
        _draw_series(axes, run, series, unit)
    if panel.level is not None:
        label, value = panel.level
        axes.axhline(value, color=_GREY, linewidth=1, linestyle=":", label=f"{label} {value:.1f}%")
    if panel.held_out is not None:
        label, value = panel.held_out
        end = max(float(phase.x[-1]) for phase in run.phases if phase.num_records) / unit
        axes.plot([end], [value], "D", color="black", markersize=4, label=f"{label} {value:.1f}%")
    if panel.is_log2:
        axes.set_yscale("log", base=2)
    elif is_log10:
        axes.set_yscale("log")
    else:
        _set_limits(axes, panel.from_zero)
    axes.yaxis.set_major_formatter(lambda y, _: formats.tick(y))
    axes.set_ylabel(f"{panel.label}, log scale" if is_log10 else panel.label)
    if len(panel.series) > 1 or panel.level is not None or panel.held_out is not None:
        axes.legend(loc="best", fontsize=8)


def _set_limits(axes: Any, from_zero: bool) -> None:
    """Leave room around the curves, even if they are constant up to rounding."""
    low, high = float(axes.dataLim.y0), float(axes.dataLim.y1)
    if from_zero:
        axes.set_ylim(0, 1.05 * high if high > 0 else 1)
    elif high - low < 1e-3 * abs(high):
        axes.set_ylim(low - 0.05 * abs(low), high + 0.05 * abs(high))


def _is_wide(run: RunRecord, panel: Panel) -> bool:
    values = np.concatenate([s.values(phase) for s in panel.series for phase in run.phases])
    values = values[np.isfinite(values)]
    return bool(values.min() > 0 and values.max() > _WIDE * np.median(values))


def _draw_series(axes: Any, run: RunRecord, series: Series, unit: float) -> None:
    num_records = sum(phase.num_records for phase in run.phases)
    label: str | None = series.label
    for phase in run.phases:
        values = series.values(phase)
        finite = np.isfinite(values)
        x, y = phase.x[finite] / unit, values[finite]
        if not len(y):
            continue
        share = phase.num_records / num_records
        raw = thin(x, y, max(3, int(RAW_POINTS * share)))
        is_smoothed = series.is_smoothed and len(y) >= _SMOOTHED_RECORDS
        axes.plot(
            raw.x, raw.y, color=series.color, label=None if is_smoothed else label,
            marker="o" if len(y) <= _MARKER_RECORDS and not is_smoothed else "", markersize=2.5,
            linewidth=0.7 if is_smoothed else 1.4, alpha=0.3 if is_smoothed else 1,
        )  # fmt: skip
        if is_smoothed:
            means = running_mean(y, _smoothing_window(phase))
            smooth = thin(x, means, max(3, int(SMOOTH_POINTS * share)))
            axes.plot(smooth.x, smooth.y, color=series.color, label=label, linewidth=1.4)
        label = None  # one entry in the legend, whatever the number of phases


def _label_phases(top: Any, run: RunRecord, unit: float) -> None:
    """Mark where phases start, and name each in the room that it has above the axes."""
    phases = [phase for phase in run.phases if phase.num_records]
    low, high = top.get_xlim()
    starts = [max(phase.samples_before / unit, low) for phase in phases]
    for i, (phase, start) in enumerate(zip(phases, starts, strict=True)):
        if i:
            for axes in top.figure.axes:
                axes.axvline(start, color=_GREY, linewidth=1, linestyle=(0, (4, 3)))
        end = starts[i + 1] if i + 1 < len(starts) else high
        room = int((end - start) / (high - low) * _AXES_WIDTH_PT / _CHARACTER_PT)
        name = formats.plain(phase.name)
        if len(name) > room:
            name = name[: room - 2] + ".." if room >= 5 else str(i + 1)
        # parse_math=False: a "$" in a name is a dollar sign, not TeX.
        top.annotate(
            name, (start, 1), xycoords=top.get_xaxis_transform(), xytext=(2, 3),
            textcoords="offset points", fontsize=8, color=_GREY, parse_math=False,
        )  # fmt: skip


def _inline(svg: str) -> str:
    """Return the SVG element without ids and style, so that a page can hold several of them.

    Coordinates are rounded to two decimals of a point.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r'^<svg[^>]*?(viewBox="[^"]*")[^>]*>', r"<svg \1>", svg, count=1, flags=re.DOTALL)
    return re.sub(r' d="[^"]*"', _two_decimals, svg)


def _two_decimals(match: re.Match[str]) -> str:
    return re.sub(r"\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}", match[0])
