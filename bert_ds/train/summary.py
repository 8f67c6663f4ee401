"""What `summary.json` says of the phases, read from the updates that were logged.

`metrics.jsonl` has every update once, also after a kill at the worst moment; what a killed process
had in memory is gone. So the phases' entries come from the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bert_ds.config.recipe import RunConfig


def phase_entries(config: RunConfig, metrics: Path) -> list[dict[str, Any]]:
    """An entry for every phase that has begun, in order.

    Args:
        config: settings of the run.
        metrics: the run's `metrics.jsonl`.

    Returns:
        Per phase: name, sequence_length, total_steps, train_batch_size, zero_stage and precision as
        set now; the counters after its last update (global_step, skipped_steps, samples_seen,
        tokens_seen); `final_loss` (nats) and `duration_s`, the sum of its updates' seconds.
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
