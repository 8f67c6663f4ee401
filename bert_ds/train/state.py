"""The state of training: counters that checkpoints keep and logs show."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TrainState:
    """Counters of one phase."""

    global_step: int = 0
    """Applied updates; the schedule is a function of it."""
    skipped_steps: int = 0
    """Updates skipped because a gradient was not finite; their rows are consumed."""
    samples_seen: int = 0
    """Rows consumed, all ranks: the position in the stream of rows."""
    tokens_seen: int = 0
    """Real tokens consumed, all ranks."""

    def record(self, num_sequences: int, num_tokens: int, *, was_applied: bool) -> None:
        """Count one update whose rows have been consumed.

        Args:
            num_sequences: rows of the update, all ranks.
            num_tokens: real tokens in them.
            was_applied: whether the update moved the weights.
        """
        self.global_step += int(was_applied)
        self.skipped_steps += int(not was_applied)
        self.samples_seen += num_sequences
        self.tokens_seen += num_tokens
