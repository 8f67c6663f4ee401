"""What a rank does when it fails: report the error once, inform the other ranks, and leave.

Every process of a run calls this, so it must work before torch is imported and at any moment of a
run: before the rendezvous, while a collective hangs, and while the launcher is ending the ranks.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bert_ds.distributed.world import World
from bert_ds.errors import BertDsError, ConfigError, LaunchError, PeerError, StopRequested

if TYPE_CHECKING:
    from bert_ds.distributed.heartbeat import HeartbeatMonitor

_SECONDS_FOR_ANOTHER_RANK_TO_REPORT = 10.0


@dataclass
class Membership:
    """Where this process stands among the ranks of its run."""

    is_in_group: bool = False
    """Whether it belongs to a process group of torch."""
    monitor: HeartbeatMonitor | None = None
    """The monitor of the other ranks; None before the rendezvous and in a run of one rank."""


membership = Membership()
"""The membership of this process; `communicator` changes it."""


def report(err: BertDsError, world: World) -> None:
    """Print an error: once where it occurs on all ranks, with the rank where it occurs on one.

    Launchers end all ranks as soon as one has ended, so a rank that leaves the report to another
    one waits for it. A rank that nobody ends meanwhile is alone with its error and reports it.
    """
    if isinstance(err, StopRequested):
        if world.is_main:
            print(f"bert-ds: {err}", file=sys.stderr)
        return
    is_on_all_ranks = isinstance(err, (ConfigError, LaunchError)) and world.local_rank > 0
    if is_on_all_ranks or isinstance(err, PeerError):
        time.sleep(_SECONDS_FOR_ANOTHER_RANK_TO_REPORT)
    is_one_host = world.local_world_size == world.world_size
    where = "" if world.is_main and is_one_host else f" ({world.name})"
    sys.stderr.write(f"bert-ds: error{where}: {err}\n")  # in one piece: ranks share the screen
    sys.stderr.flush()
    if not isinstance(err, PeerError):
        inform_other_ranks(str(err), err.exit_code, world)


def inform_other_ranks(message: str, exit_code: int, world: World) -> None:
    """Report a failure to the ranks on other hosts, which this host's launcher does not end.

    Args:
        message: the error message.
        exit_code: exit code of the command.
        world: this rank.
    """
    if membership.monitor is not None:
        membership.monitor.report_failure(message, exit_code)
    elif world.local_world_size < world.world_size:
        from bert_ds.distributed.rendezvous import report_before_rendezvous

        report_before_rendezvous(world, message, exit_code)


def wait_for_diagnosis(err: Exception) -> None:
    """Wait, after a broken collective, until the monitor has named the rank that broke it.

    It then ends this process. This returns for other errors, and where no such rank is found.
    """
    monitor = membership.monitor
    if monitor is not None and monitor.is_broken_collective(err):
        monitor.wait_for_diagnosis()


def leave(exit_code: int) -> int:
    """Return the exit code, or end a rank of a group at once.

    Tearing the group down would wait for ranks that are gone.
    """
    if membership.is_in_group:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
    return exit_code
