"""How the ranks come together: one store, everybody there, and the interface that gloo is to use.

A rank that fails before the others have come says so in the store, and a rank that does not come is
named: nobody waits half an hour for it.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import socket
import time
from dataclasses import asdict, dataclass

import psutil
from torch._C._distributed_c10d import (  # torch.distributed's, with types
    PrefixStore,
    Store,
    TCPStore,
)

from bert_ds.errors import LaunchError, PeerError
from bert_ds.meeting import address_seen_by
from bert_ds.peers import Failure, Peers, give_sign, read_failure
from bert_ds.world import World

MEETING_S = 300.0
"""Seconds that a rank waits for all others to come. Large clusters read Python from slow disks."""
_TELL_EVERY_S = 30.0
_TO_TELL_S = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Meeting:
    """All ranks have come.

    Attributes:
        store: for the process group.
        hosts: of each rank.
        addresses: of each rank, as seen from where they meet.
    """

    store: Store
    hosts: list[str]
    addresses: list[str]

    @property
    def num_hosts(self) -> int:
        """Hosts that take part."""
        return len(set(self.hosts))


def meet(world: World, timeout_s: float = MEETING_S) -> Meeting:
    """Wait until all ranks have come to MASTER_ADDR:MASTER_PORT.

    Raises:
        LaunchError: they have not come in time; names those that are missing.
        PeerError: one of them has failed meanwhile, and says why.
    """
    place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        store = open_store(world.is_main, timeout_s)
        own = {"host": socket.gethostname(), "address": _own_address()}
        store.set(f"at/{world.rank}", json.dumps(own))
        give_sign(store, world.rank, 0)
        store.add("here", 1)
        _wait_for_all(world, store, timeout_s)
        keys = [f"at/{rank}" for rank in range(world.world_size)]
        found = [json.loads(entry) for entry in store.multi_get(keys)]
    except (RuntimeError, ValueError, OSError) as err:
        raise LaunchError(
            f"rank {world.rank} of {world.world_size} could not meet the others at {place}: {err}"
        ) from err
    return Meeting(store, [at["host"] for at in found], [at["address"] for at in found])


def open_store(is_server: bool, timeout_s: float) -> Store:
    """A connection to the store at MASTER_ADDR:MASTER_PORT; on rank 0 the store itself.

    torchrun keeps the store in its agent, for all attempts: each attempt has its own names.

    Raises:
        RuntimeError: nobody answers there in time.
    """
    has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=is_server and not has_agent,
        timeout=datetime.timedelta(seconds=timeout_s),
        wait_for_workers=False,
    )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"bert_ds/{attempt}", store)


def tell_before_meeting(world: World, message: str, exit_code: int) -> None:
    """This rank fails before it has met the others: those that wait on other hosts hear why."""
    if world.local_world_size == world.world_size or "MASTER_ADDR" not in os.environ:
        return
    try:
        store = open_store(world.is_main, _TO_TELL_S)
        failure = Failure(world.rank, socket.gethostname(), message, exit_code, True)
        store.compare_set("failure", "", json.dumps(asdict(failure)))
    except (RuntimeError, ValueError):
        return  # nobody waits there: rank 0 has failed, too
    if world.is_main:
        time.sleep(_TO_TELL_S)  # the store is in this process


def peers_of(world: World, meeting: Meeting) -> Peers:
    """What the ranks tell each other, on a connection of its own."""
    return Peers(world, open_store(is_server=False, timeout_s=60.0), meeting.hosts)


def choose_interface(world: World, meeting: Meeting) -> None:
    """Have gloo use the interface that leads to the other hosts, unless GLOO_SOCKET_IFNAME is set.

    gloo asks for the address of the host's own name, which Debian's /etc/hosts says is 127.0.1.1.
    """
    if meeting.num_hosts == 1 or "GLOO_SOCKET_IFNAME" in os.environ:
        return
    own = meeting.addresses[world.rank]
    if _is_loopback(own):  # the meeting place is this host
        others = [address for address in meeting.addresses if not _is_loopback(address)]
        own = address_seen_by(others[0]) if others else own
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == own for entry in addresses) and not _is_loopback(own):
            os.environ["GLOO_SOCKET_IFNAME"] = name


def _wait_for_all(world: World, store: Store, timeout_s: float) -> None:
    begun = told = time.monotonic()
    while store.add("here", 0) < world.world_size:
        if store.check(["failure"]):
            failure = read_failure(store)
            raise PeerError(
                failure.rank, f"{failure.message} (on {failure.host})", failure.exit_code
            )
        now = time.monotonic()
        if now - begun > timeout_s:
            raise LaunchError(f"{_who_is_missing(world, store)} after {timeout_s:.0f} s")
        if world.is_main and now - told > _TELL_EVERY_S:
            told = now
            log.warning("%s", _who_is_missing(world, store))
        time.sleep(0.1)


def _who_is_missing(world: World, store: Store) -> str:
    """Which ranks have not come, in one line also where they are many."""
    missing = [rank for rank in range(world.world_size) if not store.check([f"at/{rank}"])]
    named = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    return (
        f"{len(missing)} of {world.world_size} ranks have not come (rank{'s'[: len(missing) > 1]} "
        f"{named}): see what they say on their hosts, and whether those reach "
        f"{os.environ['MASTER_ADDR']}"
    )


def _own_address() -> str:
    """This host's address on the network to the meeting place."""
    return address_seen_by(os.environ["MASTER_ADDR"])


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"
