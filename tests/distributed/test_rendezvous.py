"""Ranks find each other, or name the rank that has not come and why."""

from __future__ import annotations

import os
import time

import pytest

from bert_ds.distributed import rendezvous as module
from bert_ds.distributed.master_address import free_port
from bert_ds.distributed.rendezvous import (
    choose_interface,
    rendezvous,
    report_before_rendezvous,
)
from bert_ds.distributed.world import World
from bert_ds.errors import LaunchError, PeerError
from tests.support.ranks import run_on_ranks


def join(world: World, port: int) -> tuple[list[str], list[str], str]:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.pop("GLOO_SOCKET_IFNAME", None)
    found = rendezvous(world, timeout_s=60)
    choose_interface(world, found)  # one host: nothing to choose
    return found.hosts, found.addresses, os.environ.get("GLOO_SOCKET_IFNAME", "")


def test_all_ranks_know_all_hosts(tmp_path) -> None:
    found = run_on_ranks(2, join, tmp_path, free_port())
    assert found[0] == found[1]
    hosts, addresses, interface = found[0]
    assert len(hosts) == 2
    assert addresses == ["127.0.0.1"] * 2
    assert interface == ""


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))


def test_ranks_that_do_not_come_are_named(place) -> None:
    message = r"3 of 4 ranks have not come \(ranks 1, 2, 3\): look at their logs on their hosts"
    with pytest.raises(LaunchError, match=message):
        rendezvous(World(0, 4, 0, 1, "torch"), timeout_s=1.5)


def test_a_rank_0_that_does_not_come_is_named_in_time(place) -> None:
    begun = time.monotonic()
    message = (
        r"rank 1 of 2 has not reached the others at 127\.0\.0\.1:\d+: rank 0, which keeps the "
        r"store, has not come for 2 s \(rendezvous_timeout_s\): .* Connection refused"
    )
    with pytest.raises(LaunchError, match=message):
        rendezvous(World(1, 2, 0, 1, "torch"), timeout_s=2.0)
    assert 1.5 < time.monotonic() - begun < 10


def test_a_master_address_that_is_unknown_is_named(place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "nobody.invalid")
    with pytest.raises(LaunchError, match=r"at nobody\.invalid:\d+: rank 0, which keeps .* \(\["):
        rendezvous(World(1, 2, 0, 1, "torch"), timeout_s=1.0)


def test_a_rank_that_fails_before_it_comes_is_reported(tmp_path) -> None:
    found = run_on_ranks(2, fail_on_one, tmp_path, free_port())
    why, code, seconds = found[0]
    assert "rank 1 has failed: local rank 0 has no GPU (on " in why
    assert code == 2
    assert seconds < 30


def fail_on_one(world: World, port: int) -> tuple[str, int, float]:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    elsewhere = World(world.rank, world.world_size, 0, 1, "torch")
    if world.rank == 1:
        report_before_rendezvous(elsewhere, "local rank 0 has no GPU", exit_code=2)
        return "", 0, 0.0
    begun = time.monotonic()
    with pytest.raises(PeerError) as caught:
        rendezvous(elsewhere, timeout_s=60)
    return str(caught.value), caught.value.exit_code, time.monotonic() - begun


def test_on_one_host_no_store_is_opened_for_a_failure(
    place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher ends the others."""
    opened: list[tuple[bool, float]] = []
    monkeypatch.setattr(module, "open_store", lambda *how: opened.append(how))
    report_before_rendezvous(World(0, 2, 0, 2, "torch"), "wrong", exit_code=2)
    assert opened == []
