"""What the tasks of one preparation share: its work folder, plan, vocabulary and encoder."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from data_prep.contract.manifest import VOCABULARY_NAME
from data_prep.contract.randomness import keyed_hash
from data_prep.contract.wordpiece import Vocabulary, load_vocabulary
from data_prep.pieces.encode import TextEncoder
from data_prep.stages.plan import Plan, load_plan


@dataclass(frozen=True)
class Job:
    """One preparation, from the moment when its plan lies in the work folder.

    What it owns is loaded when it is first asked for, and never sent to another process: a worker
    gets the names alone and loads its own, once.
    """

    work: Path
    """The work folder."""
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Differs for each preparation, also for two that work in the same folder."""

    def __getstate__(self) -> dict[str, object]:
        return {"work": self.work, "key": self.key}

    @cached_property
    def plan(self) -> Plan:
        """The plan."""
        return load_plan(self.work)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary, normalised as the plan names it."""
        entry = self.plan.vocabulary
        return load_vocabulary(self.work / VOCABULARY_NAME, entry.lowercase, entry.strip_accents)

    @cached_property
    def encoder(self) -> TextEncoder:
        """The encoder, which remembers the words that it has seen."""
        options = self.plan.options
        return TextEncoder(self.vocabulary, options.sentences, keyed_hash(options.seed, "content"))
