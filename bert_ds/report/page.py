"""Writes the report: one HTML page with everything in it, which opens offline and can be mailed.

All text from the run folder is escaped, and besides a content security policy in the page forbids
scripts and loads. No clock is read: the same run gives the same bytes.
"""

from __future__ import annotations

import html
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_ds.errors import ConfigError
from bert_ds.objectives import PRETRAINING, Term
from bert_ds.report import formats
from bert_ds.report.figures import Figure, draw_figures
from bert_ds.report.record import PhaseRecord, RunRecord, as_mapping, number_in, read_run, text_in
from bert_ds.report.style import CSS
from bert_ds.report.terminal import layout_of, updates_of
from data_prep.contract.storage import replaced_file

_PHASE_ROWS: tuple[tuple[str, Callable[[PhaseRecord], str]], ...] = (
    ("Sequence length (tokens)", lambda phase: formats.count(phase.fact("sequence_length"))),
    ("Batch (sequences)", lambda phase: formats.count(phase.fact("train_batch_size"))),
    ("Updates", updates_of),
    ("Skipped updates", lambda phase: formats.count(phase.fact("skipped_steps"))),
    ("Samples", lambda phase: formats.count(phase.fact("samples_seen"))),
    ("Tokens", lambda phase: formats.count(phase.fact("tokens_seen"))),
    ("Final loss (nats)", lambda phase: formats.number(phase.fact("final_loss"))),
    ("Sequences/s, median", lambda phase: formats.number(phase.median("sequences_per_s"))),
    ("Tokens/s, median", lambda phase: formats.number(phase.median("tokens_per_s"))),
    ("Data wait, median", lambda phase: formats.percent(phase.median("data_wait_share"))),
    ("Time", lambda phase: formats.duration(phase.fact("duration_s"))),
)


def _held_out_rows() -> Iterator[tuple[str, str, Callable[[float | None], str]]]:
    """Yield key, label and format of each figure that a held-out evaluation may have."""
    for term in PRETRAINING.terms:
        yield term.accuracy, f"{term.label} accuracy", formats.percent
        if term.guess is not None:
            label = f"Accuracy of the {term.guess.label}"
            yield f"{term.guess.name}_accuracy", label, formats.percent
        yield term.loss, f"{term.label} loss (nats/{term.answer})", formats.number
    yield "sequence_length", "Sequence length (tokens)", formats.count
    yield "sequences", "Sequences", formats.count
    for term in PRETRAINING.terms:
        if term.held_out_count:
            yield term.held_out_count, term.answers_label, formats.count


def write_report(run_dir: Path, output: Path | None = None) -> Path:
    """Write the report of a run folder, whole or not at all, and return its path.

    Args:
        run_dir: folder of a run, finished or not.
        output: the HTML file; None for `report.html` in the run folder.

    Raises:
        CheckpointError: there is no such run folder.
        ConfigError: matplotlib is not installed, or `output` cannot be written.
    """
    run = read_run(run_dir)
    page = render(run, draw_figures(run))
    path = run_dir / "report.html" if output is None else output
    # A lone surrogate, which JSON can hold, has no UTF-8; as a reference it is shown as U+FFFD.
    _write_atomically(path, page.encode("utf-8", errors="xmlcharrefreplace"))
    return path


def render(run: RunRecord, figures: Sequence[Figure]) -> str:
    """Return the page as text."""
    title = escape(formats.plain(run.recipe or run.name))
    sections = [
        _header(run, title),
        _notes(run),
        _cards(run),
        _figures(figures),
        _tables(run),
        _command(run),
        _config(run),
    ]
    body = "\n".join(section for section in sections if section)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; img-src data:\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{title}: bert_ds report</title>\n<link rel="icon" href="data:,">\n'
        f"<style>{CSS}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def escape(text: object) -> str:
    """Escape text for HTML, in an element or an attribute."""
    return html.escape(str(text), quote=True)


def _write_atomically(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(path, is_durable=False) as file:
            file.write(content)
    except OSError as err:
        raise ConfigError(
            f"the report cannot be written to {path} ({err.strerror}); "
            "give a file in a folder that can be written as the output."
        ) from err


def _header(run: RunRecord, title: str) -> str:
    css = "status" if run.status == "complete" else "status unfinished"
    about = [f"Run {formats.plain(run.name)}", layout_of(run)]
    line = escape(", ".join(part for part in about if part))
    badge = f'<span class="{css}">{escape(run.status)}</span>'
    return f"<header>\n<h1>{title} {badge}</h1>\n<p>{line}</p>\n</header>"


def _notes(run: RunRecord) -> str:
    if not run.notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in run.notes)
    return f'<section class="notes">\n<h2>To know about this run</h2>\n<ul>{items}</ul>\n</section>'


def _cards(run: RunRecord) -> str:
    is_summarised = all(number_in(phase.facts, "duration_s") is not None for phase in run.phases)
    cards = [
        *_accuracy_cards(run),
        _rate_card(run),
        (
            "Training time",
            formats.duration(run.total("duration_s")),
            "all phases" if is_summarised else "sum of the recorded steps",
        ),
        (
            "Samples seen",
            formats.large(run.total("samples_seen")),
            f"{formats.large(run.total('tokens_seen'))} tokens",
        ),
    ]
    items = "".join(
        f'<div><dt>{escape(name)}</dt><dd class="value">{escape(value)}</dd>'
        f"<dd>{escape(detail)}</dd></div>\n"
        for name, value, detail in cards
    )
    return f'<dl class="cards">\n{items}</dl>'


def _accuracy_cards(run: RunRecord) -> list[tuple[str, str, str]]:
    held_out = run.held_out
    if not held_out:
        return [("Held-out accuracy", formats.UNKNOWN, "not evaluated")]
    cards = []
    for term in PRETRAINING.terms:
        loss, accuracy, guess = run.held_out_of(term)
        is_leading = term == PRETRAINING.leading
        number = formats.count(number_in(held_out, term.held_out_count or "sequences"))
        over = f"over {number} {term.answers_label.lower()}"
        if is_leading or accuracy is not None:
            against = _against_guess(term, accuracy, guess) or over
            cards.append((f"Held-out {term.label} accuracy", formats.percent(accuracy), against))
        if is_leading or loss is not None:
            cards.append((f"Held-out {term.label} loss", formats.number(loss), f"nats, {over}"))
    return cards


def _against_guess(term: Term, accuracy: float | None, guess: float | None) -> str:
    """Return how an accuracy compares with the term's trivial guess; empty if it has none."""
    if term.guess is None:
        return ""
    if accuracy is None or not guess:
        return f"{term.guess.label} not known"
    multiple = formats.number(accuracy / guess, 2)
    return f"{multiple} x the {term.guess.label} ({formats.percent(guess)})"


def _rate_card(run: RunRecord) -> tuple[str, str, str]:
    medians = [
        (formats.number(phase.median("sequences_per_s")), formats.plain(phase.name, 24))
        for phase in run.phases
    ]
    value = " / ".join(median for median, _ in medians) or formats.UNKNOWN
    names = " / ".join(name for _, name in medians)
    return "Sequences/s", value, f"median, {names}" if names else "not recorded"


def _figures(figures: Sequence[Figure]) -> str:
    if not figures:
        return ""
    drawn = "\n".join(
        f"<figure>\n<h3>{escape(figure.title)}</h3>\n"
        + figure.svg.replace(
            "<svg ", f'<svg role="img" aria-label="{escape(figure.description)}" ', 1
        )
        + f"<figcaption>{escape(figure.caption)}</figcaption>\n</figure>"
        for figure in figures
    )
    return f'<section>\n<h2>Curves</h2>\n<div class="figures">\n{drawn}\n</div>\n</section>'


def _phase_table(run: RunRecord) -> str:
    """Return a table with a column per phase: it stays narrow and has room for every quantity."""
    if not run.phases:
        return ""
    head = "".join(
        f'<th scope="col">{escape(formats.plain(phase.name, 40))}</th>' for phase in run.phases
    )
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{escape(spell(phase))}</td>" for phase in run.phases)
        + "</tr>\n"
        for name, spell in _PHASE_ROWS
    )
    table = (
        f'<table>\n<thead><tr><th scope="col">Phase</th>{head}</tr></thead>\n'
        f"<tbody>\n{rows}</tbody>\n</table>"
    )
    return f"<section>\n<h2>Phases</h2>\n{_scrolling(table, 'Phases')}\n</section>"


def _tables(run: RunRecord) -> str:
    held_out = [
        (label, spell(number_in(run.held_out, key)))
        for key, label, spell in _held_out_rows()
        if number_in(run.held_out, key) is not None
    ]
    export = text_in(run.summary, "export")
    tables = [
        _phase_table(run),
        _pairs("Held-out evaluation", held_out),
        _pairs("Data set", _spelled(as_mapping(run.summary.get("dataset")))),
        _pairs("Versions", _spelled(as_mapping(run.summary.get("versions")))),
        _pairs("Made", [("Hugging Face model", export)] if export else []),
    ]
    joined = "\n".join(table for table in tables if table)
    return f'<div class="tables">\n{joined}\n</div>' if joined else ""


def _spelled(mapping: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for name, value in mapping.items():
        is_whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**15
        if is_whole:
            spelled = formats.count(value)
        elif isinstance(value, str):
            spelled = value
        else:
            spelled = json.dumps(value, ensure_ascii=False)
        yield formats.plain(name), formats.plain(spelled)


def _pairs(title: str, pairs: Iterable[tuple[str, str]]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>\n'
        for name, value in pairs
    )
    if not rows:
        return ""
    table = f'<table class="pairs">\n<tbody>\n{rows}</tbody>\n</table>'
    return f"<section>\n<h2>{escape(title)}</h2>\n{_scrolling(table, title)}\n</section>"


def _scrolling(table: str, label: str) -> str:
    """Return a table in a box that scrolls on a narrow screen, by keyboard too."""
    return (
        f'<div class="scroll" role="region" aria-label="{escape(label)}" tabindex="0">{table}</div>'
    )


def _command(run: RunRecord) -> str:
    command = as_mapping(run.config).get("command")
    if isinstance(command, list):
        command = shlex.join(str(part) for part in command)
    if not isinstance(command, str) or not command.strip():
        return ""
    return (
        f'<section>\n<h2>To make this run again</h2>\n<pre class="command">{escape(command)}</pre>'
        "\n</section>"
    )


def _config(run: RunRecord) -> str:
    if run.config is None:
        return ""
    text = escape(json.dumps(run.config, indent=2, ensure_ascii=False))
    return (
        "<section>\n<h2>Configuration</h2>\n<details><summary>config.json, as resolved</summary>"
        f"<pre>{text}</pre></details>\n</section>"
    )
