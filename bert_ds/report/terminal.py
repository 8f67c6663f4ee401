"""Formats the outcome of a run as a few lines of plain text, with the files that it made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bert_ds.objectives import PRETRAINING
from bert_ds.report.formats import count, duration, number, percent, plain
from bert_ds.report.record import PhaseRecord, RunRecord, number_in, read_run, text_in

_HEADER = ("phase", "length", "updates", "samples", "final loss", "sequences/s", "time")


def summary_table(run_dir: Path) -> str:
    """Return a short table for a terminal: phases, held-out figures, and the files of the run.

    Raises:
        CheckpointError: there is no such run folder.
    """
    run = read_run(run_dir)
    lines = [f"{run.recipe or run.name}: {run.status}"]
    if layout := layout_of(run):
        lines[0] += f" ({layout})"
    if run.phases:
        lines += ["", *_aligned([_HEADER, *(_row(phase) for phase in run.phases)])]
    if sentence := held_out_sentence(run):
        lines += ["", f"held-out: {sentence}"]
    lines += ["", *_aligned_pairs(_made(run, run_dir))]
    lines += [f"note: {note}" for note in run.notes]
    return "\n".join(lines) + "\n"


def layout_of(run: RunRecord) -> str:
    """Return world size, ZeRO stage and precision, as far as the summary has them."""
    world_size = number_in(run.summary, "world_size")
    zero_stage = number_in(run.summary, "zero_stage")
    parts = []
    if world_size is not None:
        parts.append(f"{count(world_size)} rank" + ("s" if world_size != 1 else ""))
    if zero_stage is not None:
        parts.append(f"ZeRO stage {count(zero_stage)}")
    parts.append(text_in(run.summary, "precision"))
    return ", ".join(part for part in parts if part)


def held_out_sentence(run: RunRecord) -> str:
    """Return accuracies, compared with trivial guesses, and losses of the terms as one line."""
    parts = []
    for term in PRETRAINING.terms:
        loss, accuracy, guess = run.held_out_of(term)
        if accuracy is not None:
            against = ""
            if guess and term.guess is not None:
                against = f" ({accuracy / guess:.1f} x the {term.guess.label}, {percent(guess)})"
            parts.append(f"{term.label} accuracy {percent(accuracy)}{against}")
        if loss is not None:
            parts.append(f"{term.label} loss {number(loss)}")
    return ", ".join(parts)


def updates_of(phase: PhaseRecord) -> str:
    """Return the applied updates, and of how many if that is known: 120 of 300."""
    done, planned = count(phase.fact("global_step")), phase.fact("total_steps")
    return done if planned is None else f"{done} of {count(planned)}"


def _row(phase: PhaseRecord) -> tuple[str, ...]:
    return (
        plain(phase.name, 24),
        count(phase.fact("sequence_length")),
        updates_of(phase),
        count(phase.fact("samples_seen")),
        number(phase.fact("final_loss")),
        number(phase.median("sequences_per_s")),
        duration(phase.fact("duration_s")),
    )


def _made(run: RunRecord, run_dir: Path) -> list[tuple[str, str]]:
    made = [("run folder", plain(run_dir, 4096))]
    if export := run.summary.get("export"):
        made.append(("exported model", plain(export, 4096)))
    if (run_dir / "report.html").exists():
        made.append(("report", plain(run_dir / "report.html", 4096)))
    return made


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align rows in columns: the first column to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _aligned_pairs(pairs: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in pairs)
    return [f"{name.ljust(width)}  {value}" for name, value in pairs]
