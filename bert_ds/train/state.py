"""Where training stands: the counters that checkpoints keep and logs show."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TrainState:
    """Counters of one phase.

    Attributes:
        global_step: applied updates; the schedule is a function of it.
        skipped_steps: updates skipped since a gradient was not finite. Their rows are consumed.
        samples_seen: rows consumed, all ranks; the position in the data.
        tokens_seen: real tokens consumed, all ranks.
    """

    global_step: int = 0
    skipped_steps: int = 0
    samples_seen: int = 0
    tokens_seen: int = 0

    def record(self, *, was_applied: bool, num_sequences: int, num_tokens: int) -> None:
        """Count one update whose rows have been consumed."""
        self.global_step += int(was_applied)
        self.skipped_steps += int(not was_applied)
        self.samples_seen += num_sequences
        self.tokens_seen += num_tokens
