"""The rendezvous: all ranks connect to one store, learn all hosts, and choose gloo's interface.

A rank that fails before the others have come reports that in the store, and a rank that does not
come is named, so that no rank waits half an hour for it.

What makes this hard: ranks start minutes apart, any of them may never start, and the port may
belong to another run, or to an earlier attempt of this one. These rules must not change:

- A rank registers with `compare_set` under `owner` and `at/RANK` before it counts itself in `here`.
  So a second run on the same port is refused instead of mixed in, and once `here` has reached the
  world size all hosts and addresses can be read.
- The wait ends by the time since the last rank came, not since the start: many slow hosts are no
  failure, one that never comes is.
- The first heartbeat is sent before a rank counts itself, so that a monitor never finds a rank
  without one.
- Rank 0 keeps the store in its own process (torchrun: in its agent). If it fails it must outlive
  its report (`report_before_rendezvous`), or the others lose the store and the reason with it.

Keys of the store: `owner`, the run that has the port; `at/RANK`, host and address of a rank as
JSON; `here`, the number of ranks that have come; `failure`, see `heartbeat`.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import socket
import sys
import time
from dataclasses import asdict, dataclass

import psutil
from torch._C._distributed_c10d import (  # torch.distributed's, with types
    PrefixStore,
    Store,
    TCPStore,
)

from bert_ds.distributed.heartbeat import Failure, HeartbeatMonitor, read_failure, send_beat
from bert_ds.distributed.master_address import address_seen_by
from bert_ds.distributed.world import World
from bert_ds.errors import LaunchError, PeerError

RENDEZVOUS_S = 60.0
"""Seconds without a further rank after which those that are missing count as lost."""
_LOG_EVERY_S = 30.0
_RETRY_S = 0.2
_REPORT_S = 5.0

_store: Store | None = None
"""The store of this process, once it is open; rank 0 can open it only once."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rendezvous:
    """What a rank knows once all have come."""

    store: Store
    """The store, for the process group."""
    hosts: list[str]
    """The host of each rank."""
    addresses: list[str]
    """The address of each rank's host on the network to MASTER_ADDR."""

    @property
    def num_hosts(self) -> int:
        """The number of hosts that take part."""
        return len(set(self.hosts))


def rendezvous(world: World, timeout_s: float = RENDEZVOUS_S) -> Rendezvous:
    """Wait until all ranks have come to MASTER_ADDR:MASTER_PORT.

    Args:
        world: this rank.
        timeout_s: seconds that may pass without a further rank.

    Raises:
        LaunchError: ranks are missing, which the message names, or another run has the port.
        PeerError: one of them has failed meanwhile; the error has its message.
    """
    _refuse_restarts_on_several_hosts(world)
    place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        if not world.is_main and not _has_agent():
            _wait_for_rank_0(timeout_s)
        store = _keep(open_store(world.is_main, timeout_s))
        _take_place(world, store)
        send_beat(store, world.rank, 0)
        store.add("here", 1)
        _wait_for_all(world, store, timeout_s)
        keys = [f"at/{rank}" for rank in range(world.world_size)]
        found = [json.loads(entry) for entry in store.multi_get(keys)]
    except (RuntimeError, ValueError, OSError) as err:
        raise LaunchError(
            f"rank {world.rank} of {world.world_size} has not reached the others at {place}: "
            f"{str(err).splitlines()[0]}"
        ) from err
    addresses = [at["address"] for at in found]
    return Rendezvous(store, _names_of_hosts([at["host"] for at in found], addresses), addresses)


def _wait_for_rank_0(timeout_s: float) -> None:
    """Wait until rank 0 keeps a store at MASTER_ADDR:MASTER_PORT.

    TCPStore would wait, too, but for up to twice its timeout, and its error gives no reason.

    Raises:
        ConnectionError: there is none in time; the message has the error of the last attempt.
    """
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    deadline = time.monotonic() + timeout_s
    while True:
        left = max(deadline - time.monotonic(), _RETRY_S)
        try:
            socket.create_connection(place, timeout=left).close()
        except OSError as err:
            if time.monotonic() + _RETRY_S > deadline:
                raise ConnectionError(
                    f"rank 0, which keeps the store, has not come for {timeout_s:.0f} s "
                    f"(rendezvous_timeout_s): look at its log on its host ({err})"
                ) from err
            time.sleep(_RETRY_S)
        else:
            return


def _keep(store: Store) -> Store:
    global _store
    _store = store
    return store


def _take_place(world: World, store: Store) -> None:
    """Register this rank, unless a rank of another run has come here before it."""
    owner = store.compare_set("owner", "", run_identity(world)).decode()
    own = {"host": socket.gethostname(), "address": _own_address(), "process": os.getpid()}
    value = json.dumps(own)
    is_free = owner == run_identity(world)
    if not is_free or store.compare_set(f"at/{world.rank}", "", value).decode() != value:
        raise LaunchError(
            f"rank {world.rank} of {world.world_size}: another run is at "
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} ({owner}); wait until it has "
            "ended, or give this one another port (deepspeed --master_port, MASTER_PORT)"
        )


def run_identity(world: World) -> str:
    """Return a text that all ranks of a run share and other runs do not; error messages show it."""
    words = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]
    folder = ""
    for flag in ("--output-dir", "--run"):
        if flag in words[:-1]:
            folder = words[words.index(flag) + 1]
    command = words[0] if words else ""
    return f"{command} {folder}, {world.world_size} ranks"


def _refuse_restarts_on_several_hosts(world: World) -> None:
    """Refuse torchrun's own restarts: its agents count them separately and keep an old store."""
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if restarts != "0" and world.local_world_size < world.world_size:
        raise LaunchError(
            f"torchrun --max_restarts {restarts} cannot start ranks on several hosts again; leave "
            "it out and start torchrun by 'bert-ds supervise --max-restarts' on every host"
        )


def _names_of_hosts(names: list[str], addresses: list[str]) -> list[str]:
    """Return names that distinguish the hosts, also where several have the same one."""
    places: dict[str, set[str]] = {}
    for name, address in zip(names, addresses, strict=True):
        places.setdefault(name, set()).add(address)
    return [
        f"{name} ({address})" if len(places[name]) > 1 else name
        for name, address in zip(names, addresses, strict=True)
    ]


def open_store(is_server: bool, timeout_s: float) -> Store:
    """Connect to the store at MASTER_ADDR:MASTER_PORT; rank 0 opens the store itself.

    torchrun keeps the store in its agent, for all attempts: each attempt has its own prefix.

    Raises:
        RuntimeError: there is no answer in time.
    """
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=is_server and not _has_agent(),
        timeout=datetime.timedelta(seconds=timeout_s),
        wait_for_workers=False,
    )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"bert_ds/{attempt}", store)


def _has_agent() -> bool:
    """Whether torchrun's agent keeps the store."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def report_before_rendezvous(world: World, message: str, exit_code: int) -> None:
    """Report that this rank fails before the rendezvous, to those that wait on other hosts.

    Args:
        world: this rank.
        message: the error message.
        exit_code: exit code of the command.
    """
    if world.local_world_size == world.world_size or "MASTER_ADDR" not in os.environ:
        return
    try:
        if _store is None and not world.is_main and not _has_agent():
            _wait_for_rank_0(_REPORT_S)
        store = _store or open_store(world.is_main, _REPORT_S)
        owner = store.compare_set("owner", "", run_identity(world)).decode()
        if owner != run_identity(world) or store.add("here", 0) >= world.world_size:
            return  # it is the store of another run, or the rendezvous is over
        failure = Failure(world.rank, socket.gethostname(), message, exit_code, True)
        store.compare_set("failure", "", json.dumps(asdict(failure)))
    except (RuntimeError, ValueError, OSError):
        return  # no rank waits there: rank 0 has failed, too
    if world.is_main:
        time.sleep(_REPORT_S)  # the store is in this process


def monitor_of(world: World, found: Rendezvous) -> HeartbeatMonitor:
    """Build the heartbeat monitor, on a connection of its own."""
    return HeartbeatMonitor(world, open_store(is_server=False, timeout_s=60.0), found.hosts)


def choose_interface(world: World, found: Rendezvous) -> None:
    """Have gloo use the interface that leads to the other hosts, unless GLOO_SOCKET_IFNAME is set.

    gloo asks for the address of the host's own name, which is 127.0.1.1 in Debian's /etc/hosts.
    """
    if found.num_hosts == 1 or "GLOO_SOCKET_IFNAME" in os.environ:
        return
    own = found.addresses[world.rank]
    if _is_loopback(own):  # MASTER_ADDR is this host
        others = [address for address in found.addresses if not _is_loopback(address)]
        own = address_seen_by(others[0]) if others else own
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == own for entry in addresses) and not _is_loopback(own):
            os.environ["GLOO_SOCKET_IFNAME"] = name


def _wait_for_all(world: World, store: Store, timeout_s: float) -> None:
    came = logged = time.monotonic()
    num_here = 0
    while num_here < world.world_size:
        if store.check(["failure"]):
            failure = read_failure(store)
            raise PeerError(
                failure.rank, f"{failure.message} (on {failure.host})", failure.exit_code
            )
        now, before = time.monotonic(), num_here
        num_here = store.add("here", 0)
        came = now if num_here > before else came
        if now - came > timeout_s:
            raise LaunchError(
                f"{_who_is_missing(world, store)}; no further one has come for {timeout_s:.0f} s "
                "(rendezvous_timeout_s)"
            )
        if world.is_main and now - logged > _LOG_EVERY_S:
            logged = now
            log.warning("%s", _who_is_missing(world, store))
        time.sleep(0.1)


def _who_is_missing(world: World, store: Store) -> str:
    """Name the ranks that have not come, in one line also where they are many."""
    missing = [rank for rank in range(world.world_size) if not store.check([f"at/{rank}"])]
    named = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    return (
        f"{len(missing)} of {world.world_size} ranks have not come (rank{'s'[: len(missing) > 1]} "
        f"{named}): look at their logs on their hosts, and whether those reach "
        f"{os.environ['MASTER_ADDR']}"
    )


def _own_address() -> str:
    """Return this host's address on the network to MASTER_ADDR."""
    return address_seen_by(os.environ["MASTER_ADDR"])


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"
