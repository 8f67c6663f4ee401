"""Heartbeats: how ranks notice that another one has failed, and end with its message.

Launchers end the ranks of the host where one has failed. On the other hosts ranks wait in a
collective for one that will not come: gloo until the connection breaks, NCCL without end, and a cut
cable is no broken connection. So each rank has a second connection to the key-value store, apart
from the one of its collectives. It writes a heartbeat there every second and reads whether another
rank has reported a failure. Rank 0 watches all ranks, all ranks watch rank 0.

Keys of the store: `beat/RANK`, a number that grows; `failure`, the first failure as JSON;
`suspected`, written by a rank whose collective broke.

What makes this hard: a call to the store never returns when the network is dead, so the thread that
calls it cannot judge. There are two threads, and three rules about what they share.

- `_send_loop` writes beats, reads the store, and replaces `_seen`, which holds all that it has
  read, as a whole. Nobody else writes `_seen`.
- `_watch_loop` reads `_seen` and owns the detector and its clock. It is the only one that ends
  the process.
- Events alone are set by several threads: `_is_over` (`close`), `_is_suspected` (the thread of
  the command whose collective broke, and `_send_loop` where another rank's did).

Time counts only while this process runs: a process that was suspended must blame no other rank, so
the detector counts a long pause between two looks as one short tick.

The order in which a process ends must not change either. A failing rank writes `failure` before it
ends, and rank 0, whose process may hold the store, stays until the others can have read it. A
watcher first waits for `launcher_s`: where a launcher ends the rank in that time, the message of
the failed rank is printed once and not by every rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import torch.distributed as torch_dist
from torch._C._distributed_c10d import Store  # torch.distributed's, with types

from bert_ds.distributed.world import World
from data_prep.contract.screen import show_last_words, within


@dataclass(frozen=True)
class Failure:
    """Why a run ends."""

    rank: int
    """The rank that failed."""
    host: str
    """Its host."""
    message: str
    """The error message."""
    exit_code: int
    """Exit code of the command."""
    is_reported: bool
    """Whether the rank itself has printed the message on its host."""

    @property
    def as_text(self) -> str:
        """The message as other hosts print it."""
        return f"bert-ds: error (rank {self.rank} on {self.host}): {self.message}"


@dataclass(frozen=True)
class Timing:
    """Intervals of a monitor, in seconds."""

    beat_s: float = 1.0
    """Time between two heartbeats."""
    tick_s: float = 0.5
    """Time between two looks at what was read."""
    longest_tick_s: float = 2.0
    """What a longer pause between two looks counts as: the process was suspended."""
    launcher_s: float = 2.0
    """Time in which a launcher ends the other ranks, which then need not report anything."""
    suspected_s: float = 4.0
    """Time without a heartbeat after which a rank counts as lost once a collective has failed."""
    write_s: float = 5.0
    """Time for the last message to the screen or to the store."""


ONE_HOST = Timing()
SEVERAL_HOSTS = Timing(launcher_s=5.0, suspected_s=10.0)


@dataclass(frozen=True)
class Seen:
    """What a rank has read from the store so far."""

    beats: tuple[bytes, ...] = ()
    """The last heartbeat of each watched rank."""
    num_answers: int = 0
    """How often the store has answered."""
    reported: Failure | None = None
    """The failure that a rank has reported."""
    connection_error: str = ""
    """Why the store answers no more; empty while it does."""


class FailureDetector:
    """A judge that finds the failed rank from what was read; it knows no threads and no store."""

    def __init__(self, rank: int, hosts: Sequence[str], heartbeat_s: float, timing: Timing) -> None:
        """Start with all ranks alive.

        Args:
            rank: the rank that watches.
            hosts: the host of each rank.
            heartbeat_s: seconds without a heartbeat after which a rank is lost; 0 for never.
            timing: gives `longest_tick_s` and `suspected_s`.
        """
        self._rank = rank
        self._hosts = hosts
        self._timing = timing
        self._patience_s = heartbeat_s
        self._patience_of = "heartbeat_s"
        self._former = Seen()
        self._silence_s: dict[int, float] = {}
        self._unanswered_s = 0.0
        self._looked_at: float | None = None

    def suspect(self) -> None:
        """Lower the patience: a collective has failed, so some rank is probably lost."""
        if self._patience_s > self._timing.suspected_s:
            self._patience_s = self._timing.suspected_s
            self._patience_of = "a rank has lost its connections"

    def find_failure(self, now: float, seen: Seen) -> Failure | None:
        """Return the failure that ends the run, or None.

        Args:
            now: seconds of a clock that never goes back.
            seen: what was read from the store until now.
        """
        passed = 0.0 if self._looked_at is None else now - self._looked_at
        self._count_silence(min(passed, self._timing.longest_tick_s), seen)
        self._looked_at = now
        if seen.reported is not None and seen.reported.rank != self._rank:
            return seen.reported
        return self._lost_rank(seen)

    def _count_silence(self, passed: float, seen: Seen) -> None:
        former = self._former.beats or (None,) * len(seen.beats)
        for rank, (beat, before) in enumerate(zip(seen.beats, former, strict=True)):
            self._silence_s[rank] = self._silence_s[rank] + passed if beat == before else 0.0
        is_answered = seen.num_answers != self._former.num_answers
        self._unanswered_s = 0.0 if is_answered else self._unanswered_s + passed
        self._former = seen

    def _lost_rank(self, seen: Seen) -> Failure | None:
        own = self._hosts[self._rank]
        if seen.connection_error:
            return self._failure_of(
                0,
                f"has ended ({own} lost its connection to it: {seen.connection_error}); if it gave "
                "no reason it was killed: look into the kernel log of its host for one out of "
                "memory",
            )
        if not self._patience_s:
            return None
        if self._rank != 0 and self._unanswered_s > self._patience_s:
            return self._failure_of(
                0,
                f"has not answered {own} for {self._unanswered_s:.0f} s ({self._patience_of}): its "
                "host, or the network between them, is down",
            )
        for rank, seconds in self._silence_s.items():
            if rank != self._rank and seconds > self._patience_s:
                return self._failure_of(
                    rank,
                    f"has sent no heartbeat for {seconds:.0f} s ({self._patience_of}): the process "
                    "was killed (look into its host's kernel log for one out of memory) or "
                    "stopped, or its host or the network to it is down",
                )
        return None

    def _failure_of(self, rank: int, how: str) -> Failure:
        resume = "Start the same command again: it resumes from the last checkpoint"
        return Failure(rank, self._hosts[rank], f"the rank {how}. {resume}", 1, False)


class HeartbeatMonitor:
    """The two threads that send this rank's heartbeats and watch the other ranks."""

    def __init__(
        self,
        world: World,
        store: Store,
        hosts: Sequence[str],
        *,
        timing: Timing | None = None,
        end_process: Callable[[int], object] = os._exit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Send the first heartbeat; `start` starts the threads.

        Args:
            world: this rank.
            store: a connection that nothing else uses.
            hosts: the host of each rank.
            timing: intervals; by default those for one host or for several.
            end_process: ends this process with an exit code.
            clock: seconds, never going back.
        """
        self._world = world
        self._store = store
        self._hosts = hosts
        self._own_host = hosts[world.rank]
        self._is_wide = len(set(hosts)) > 1
        self._timing = timing or (SEVERAL_HOSTS if self._is_wide else ONE_HOST)
        self._end_process = end_process
        self._clock = clock
        self._seen = Seen()
        self._is_over = threading.Event()
        self._is_suspected = threading.Event()
        self._threads: list[threading.Thread] = []
        send_beat(store, world.rank, 0)

    def start(self, heartbeat_s: float) -> None:
        """Start both threads.

        Args:
            heartbeat_s: seconds without a heartbeat after which a rank is lost; 0 for never.
        """
        detector = FailureDetector(self._world.rank, self._hosts, heartbeat_s, self._timing)
        self._threads = [
            threading.Thread(target=self._send_loop, name="heartbeat-send", daemon=True),
            threading.Thread(
                target=self._watch_loop, args=(detector,), name="heartbeat-watch", daemon=True
            ),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End both threads, after the last barrier: no rank misses another any more."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(timeout=5.0)

    def report_failure(self, message: str, exit_code: int) -> None:
        """Report to the other ranks that this one ends, and why. The first failure counts."""
        failure = Failure(self._world.rank, self._own_host, message, exit_code, True)
        self._write("failure", json.dumps(asdict(failure)))
        if self._world.is_main and self._is_wide:
            # the store may be in this process, and the others must read it first
            time.sleep(3 * self._timing.beat_s)

    def wait_for_diagnosis(self) -> None:
        """Wait, after a failed collective, until the rank at fault is found and this process ended.

        Returns where no rank is found.
        """
        self._is_suspected.set()
        self._write("suspected", str(self._world.rank))  # rank 0, which judges, may see no fault
        timing = self._timing
        time.sleep(timing.suspected_s + timing.launcher_s + 3 * timing.beat_s)

    def _write(self, key: str, value: str) -> None:
        """Write a key that no rank has written; give up where the store does not answer."""

        def write() -> None:
            with contextlib.suppress(RuntimeError):  # its host is gone, as all ranks will see
                self._store.compare_set(key, "", value)

        within(self._timing.write_s, write)

    @staticmethod
    def is_broken_collective(err: Exception) -> bool:
        """Whether a collective raises this when a rank is missing (gloo, NCCL, a store)."""
        message = str(err)
        return isinstance(err, torch_dist.DistError) or (
            isinstance(err, RuntimeError)
            and any(mark in message for mark in ("gloo", "NCCL", "Connection closed by peer"))
        )

    def _send_loop(self) -> None:
        """Send heartbeats and read the store; on a dead network this thread never returns."""
        watched = range(self._world.world_size) if self._world.is_main else range(1)
        keys = [f"beat/{rank}" for rank in watched]
        number = 0
        while not self._is_over.wait(self._timing.beat_s):
            number += 1
            seen = self._seen
            try:
                send_beat(self._store, self._world.rank, number)
                beats = tuple(self._store.multi_get(keys))
                if self._store.check(["suspected"]):
                    self._is_suspected.set()
                if self._store.check(["failure"]):
                    self._seen = replace(seen, beats=beats, reported=read_failure(self._store))
                    return  # the rank that holds the store may end now
            except RuntimeError as err:
                self._seen = replace(seen, connection_error=str(err).splitlines()[0])
                return
            self._seen = replace(seen, beats=beats, num_answers=seen.num_answers + 1)

    def _watch_loop(self, detector: FailureDetector) -> None:
        """Look for a failure, and end this process when there is one."""
        while not self._is_over.wait(self._timing.tick_s):
            if self._is_suspected.is_set():
                detector.suspect()
            seen = self._seen
            failure = detector.find_failure(self._clock(), seen)
            if failure is not None and not self._is_over.is_set():
                if self._world.is_main and failure is not seen.reported:
                    self._write("failure", json.dumps(asdict(failure)))
                self._exit(failure)
                return

    def _exit(self, failure: Failure) -> None:
        """End this process; print the message where no launcher ends it first."""
        if self._is_over.wait(self._timing.launcher_s):
            return  # all ranks have finished meanwhile, rank 0 first
        is_printed_here = failure.is_reported and failure.host == self._own_host
        prints = self._world.is_main or (failure.rank == 0 and self._world.local_rank == 0)
        text = f"{failure.as_text}\n" if prints and not is_printed_here else ""
        within(self._timing.write_s, lambda: show_last_words(text))
        self._end_process(failure.exit_code)


def send_beat(store: Store, rank: int, number: int) -> None:
    """Write a heartbeat. Every rank has sent its first one before the rendezvous is over.

    Args:
        store: the key-value store.
        rank: the rank that sends it.
        number: a number that grows, so that each heartbeat differs from the former one.
    """
    store.set(f"beat/{rank}", str(number))


def read_failure(store: Store) -> Failure:
    """Read the failure that a rank has written to the store."""
    return Failure(**json.loads(store.get("failure")))
