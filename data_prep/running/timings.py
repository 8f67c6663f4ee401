"""How long each stage of a preparation took, and the memory of its largest process."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class StageClock:
    """Sums the seconds of stages by name."""

    def __init__(self) -> None:
        self.stages_s: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what happens inside to the stage `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.stages_s[name] = self.stages_s.get(name, 0.0) + time.perf_counter() - start

    def to_json(self) -> dict[str, Any]:
        """Return the seconds by stage, the peak memory and the CPU time as plain JSON values.

        `peak_mib` is that of this process or of a worker that has ended, whichever is larger;
        `cpu_s` is the user and system time of all of them.
        """
        own, ended = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return {
            "stages_s": self.stages_s,
            "peak_mib": max(_peak_of_this_process_mib(), ended.ru_maxrss / 1024),
            "cpu_s": sum(usage.ru_utime + usage.ru_stime for usage in (own, ended)),
        }


def _peak_of_this_process_mib() -> float:
    """Return the largest resident memory since this program was started.

    `ru_maxrss` also counts what the process was before, a copy of the one that started it.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:  # another system than Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024
