"""The entries of `summary.json` for the phases, computed from the updates that were logged.

`metrics.jsonl` has every update exactly once, even if the process was killed at the worst moment;
what it had in memory is lost. So the phases' entries come from the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bert_ds.config.recipe import RunConfig


def phase_entries(config: RunConfig, metrics: Path) -> list[dict[str, Any]]:
    """Return an entry for each phase that has begun, in order.

    Args:
        config: settings of the run.
        metrics: the run's `metrics.jsonl`.

    Returns:
        For each phase: name, sequence_length, total_steps, train_batch_size, zero_stage and
        precision as set now; the counters after its last update (global_step, skipped_steps,
        samples_seen, tokens_seen); `final_loss` in nats; and `duration_s`, the seconds of all its
        updates.
    """
    last: dict[str, dict[str, Any]] = {}
    seconds: dict[str, float] = {}
    if not metrics.exists():
        return []
    with metrics.open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            last[row["phase"]] = row
            seconds[row["phase"]] = seconds.get(row["phase"], 0.0) + row["step_s"]
    return [
        {
            "name": phase.name,
            "sequence_length": phase.sequence_length,
            "total_steps": phase.total_steps,
            "train_batch_size": phase.deepspeed.train_batch_size,
            "zero_stage": phase.deepspeed.zero_stage,
            "precision": phase.deepspeed.precision,
            **{
                counter: last[phase.name][counter]
                for counter in ("global_step", "skipped_steps", "samples_seen", "tokens_seen")
            },
            "final_loss": last[phase.name]["loss"],
            "duration_s": seconds[phase.name],
        }
        for phase in config.phases
        if phase.name in last
    ]
