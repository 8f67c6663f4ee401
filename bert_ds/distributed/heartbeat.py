"""What the ranks of a run tell each other beside training: who has come, who failed, who lives.

Launchers end the ranks of the host where one has failed. On the other hosts ranks wait in a
collective for one that will not come: gloo until the connection breaks, NCCL for ever, and a cut
cable is no broken connection. So each rank keeps a line of its own to a key-value store, beside the
one that the collectives use, says there every second that it lives, and reads there whether another
one has failed. Rank 0 looks after all, all look after rank 0. A rank that learns of a failure ends,
with the message of the rank that failed.

What is counted is time in which this process ran: one that was suspended blames nobody.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch.distributed as torch_dist
from torch._C._distributed_c10d import Store  # torch.distributed's, with types

from bert_ds.distributed.world import World
from data_prep.contract.screen import show_last_words, within

_BEAT_S = 1.0
_TICK_S = 0.5
_LONGEST_TICK_S = 2.0
_FOR_THE_LAUNCHER_S = {False: 2.0, True: 5.0}
"""On one host, on several: a launcher ends other ranks in this time, and they need not speak."""
_TO_WRITE_S = 5.0
_IN_DOUBT_S = {False: 4.0, True: 10.0}
"""On one host, on several: a silence that is enough once a collective has failed."""


_current: Peers | None = None


def current() -> Peers | None:
    """The peers of this process; None before the ranks have met, and in a run of one."""
    return _current


def set_current(peers: Peers | None) -> None:
    """The ranks have met, or leave."""
    global _current
    _current = peers


@dataclass(frozen=True)
class Failure:
    """Why a run ends.

    Attributes:
        rank: that failed.
        host: it ran on.
        message: for people.
        exit_code: of the command.
        is_told: whether the rank itself has said so on its host's screen.
    """

    rank: int
    host: str
    message: str
    exit_code: int
    is_told: bool

    @property
    def as_text(self) -> str:
        """The message as it is shown on other hosts."""
        return f"bert-ds: error (rank {self.rank} on {self.host}): {self.message}"


class Peers:
    """The other ranks of a run, as this one hears of them; two threads once it watches."""

    def __init__(
        self,
        world: World,
        store: Store,
        hosts: list[str],
        end: Callable[[int], object] = os._exit,
    ) -> None:
        """Args: this rank; a connection that nobody else uses; the host of each rank; how a process
        ends."""
        self._world = world
        self._store = store
        self._hosts = hosts
        self._own_host = hosts[world.rank]
        self._is_wide = len(set(hosts)) > 1
        self._end = end
        self._patience_s = 0.0
        self._patience_of = "heartbeat_s"
        self._is_over = threading.Event()
        self._beats: list[bytes] = []
        self._num_talks = 0
        self._failure: Failure | None = None
        self._lost: str | None = None
        self._threads: list[threading.Thread] = []
        give_sign(store, world.rank, 0)

    def watch(self, heartbeat_s: float) -> None:
        """Begin to say that this rank lives, and to look after the others.

        Args:
            heartbeat_s: seconds of silence after which a rank counts as lost; 0 for never.
        """
        self._patience_s = heartbeat_s
        for target in (self._talk, self._judge):
            thread = threading.Thread(target=target, name=f"peers{target.__name__}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """End of the watch, after the last barrier: no rank misses another any more."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(timeout=5.0)

    def tell(self, message: str, exit_code: int) -> None:
        """Let the other ranks know that this one ends, and why. The first failure counts."""
        failure = Failure(self._world.rank, self._own_host, message, exit_code, True)
        self._write("failure", json.dumps(asdict(failure)))
        if self._world.is_main and self._is_wide:
            time.sleep(3 * _BEAT_S)  # the store may be in this process: the others read it still

    def wait_for_a_verdict(self) -> None:
        """After a collective has failed: give the judge time to find whose fault it is. It ends
        this process; where it finds nobody, this returns."""
        in_doubt_s = _IN_DOUBT_S[self._is_wide]
        self._be_in_doubt()
        self._write("doubt", str(self._world.rank))  # rank 0, which judges, may see no fault yet
        time.sleep(in_doubt_s + _FOR_THE_LAUNCHER_S[self._is_wide] + 3 * _BEAT_S)

    def _be_in_doubt(self) -> None:
        if self._patience_s > _IN_DOUBT_S[self._is_wide]:
            self._patience_s = _IN_DOUBT_S[self._is_wide]
            self._patience_of = "a rank has lost its connections"

    def _write(self, key: str, value: str) -> None:
        """Write a key that nobody has written; give up where the store does not answer."""

        def write() -> None:
            with contextlib.suppress(RuntimeError):  # its host is gone, as all will see
                self._store.compare_set(key, "", value)

        within(_TO_WRITE_S, write)

    @staticmethod
    def is_broken_collective(err: Exception) -> bool:
        """Whether this is what a collective raises when a rank is missing (gloo, NCCL, a store)."""
        told = str(err)
        return isinstance(err, torch_dist.DistError) or (
            isinstance(err, RuntimeError)
            and any(word in told for word in ("gloo", "NCCL", "Connection closed by peer"))
        )

    def _talk(self) -> None:
        """Say that this rank lives, and hear of the others; a dead network holds it up for ever."""
        watched = range(self._world.world_size) if self._world.is_main else range(1)
        keys = [f"beat/{rank}" for rank in watched]
        number = 0
        while not self._is_over.wait(_BEAT_S):
            number += 1
            try:
                give_sign(self._store, self._world.rank, number)
                self._beats = self._store.multi_get(keys)
                if self._store.check(["doubt"]):
                    self._be_in_doubt()
                if self._store.check(["failure"]):
                    self._failure = read_failure(self._store)
                    return  # whoever holds the store may go now
            except RuntimeError as err:
                self._lost = str(err).splitlines()[0]
                return
            self._num_talks += 1

    def _judge(self) -> None:
        silence: dict[int, float] = {}
        heard: dict[int, bytes] = {}
        num_talks, unanswered, before = 0, 0.0, time.monotonic()
        while not self._is_over.wait(_TICK_S):
            now = time.monotonic()
            passed, before = min(now - before, _LONGEST_TICK_S), now
            if self._failure is not None and self._failure.rank != self._world.rank:
                self._leave(self._failure)
                return
            for rank, beat in enumerate(list(self._beats)):
                silence[rank] = 0.0 if heard.get(rank) != beat else silence[rank] + passed
                heard[rank] = beat
            unanswered = 0.0 if self._num_talks != num_talks else unanswered + passed
            num_talks = self._num_talks
            verdict = self._verdict(silence, unanswered)
            if verdict is not None and not self._is_over.is_set():
                if self._world.is_main:
                    self._write("failure", json.dumps(asdict(verdict)))
                self._leave(verdict)
                return

    def _verdict(self, silence: dict[int, float], unanswered: float) -> Failure | None:
        own = self._own_host
        if self._lost is not None:
            return self._gone(
                0,
                f"has ended ({own} lost its connection to it: {self._lost}); if it gave no reason "
                "it was killed: look into the kernel log of its host for one out of memory",
            )
        if not self._patience_s:
            return None
        if not self._world.is_main and unanswered > self._patience_s:
            return self._gone(
                0,
                f"has not answered {own} for {unanswered:.0f} s ({self._patience_of}): its host, "
                "or the network between them, is down",
            )
        for rank, seconds in silence.items():
            if rank != self._world.rank and seconds > self._patience_s:
                return self._gone(
                    rank,
                    f"has not been heard of for {seconds:.0f} s ({self._patience_of}): the process "
                    "was killed (look into its host's kernel log for one out of memory) or "
                    "stopped, or its host or the network to it is down",
                )
        return None

    def _gone(self, rank: int, how: str) -> Failure:
        again = "Started again, the same command goes on from the last checkpoint"
        return Failure(rank, self._hosts[rank], f"the rank {how}. {again}", 1, False)

    def _leave(self, failure: Failure) -> None:
        """End this process; where no launcher does it first, with the message."""
        if self._is_over.wait(_FOR_THE_LAUNCHER_S[self._is_wide]):
            return  # all have come to the end meanwhile, rank 0 first
        is_told_here = failure.is_told and failure.host == self._own_host
        speaks = self._world.is_main or (failure.rank == 0 and self._world.local_rank == 0)
        text = f"{failure.as_text}\n" if speaks and not is_told_here else ""
        within(_TO_WRITE_S, lambda: show_last_words(text))
        self._end(failure.exit_code)


def give_sign(store: Store, rank: int, number: int) -> None:
    """A rank says that it lives. Ranks that have met have all said so once."""
    store.set(f"beat/{rank}", str(number))


def read_failure(store: Store) -> Failure:
    """The failure that a rank has written to the store."""
    return Failure(**json.loads(store.get("failure")))
