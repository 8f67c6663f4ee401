"""Facts of all ranks become facts of hosts."""

from __future__ import annotations

from dataclasses import replace

from bert_ds.doctor.ranks import merge_ranks
from tests.unit.bert_ds.doctor.test_judge import NODE


def test_a_host_counts_once_and_its_ranks_are_counted() -> None:
    other = replace(NODE, host="node2", addresses=[("eth0", "10.0.0.2")], clock=3.0)
    gathered = [entry.as_dict() for entry in (NODE, NODE, other, NODE)]
    hosts, slots, offsets = merge_ranks(gathered)
    assert hosts == [NODE, other]
    assert slots == {"node1": 3, "node2": 1}
    assert offsets == {"node1": 0.0, "node2": 3.0}


def test_hosts_of_one_name_are_named_by_their_addresses_too() -> None:
    twin = replace(NODE, addresses=[("eth0", "10.0.0.2")])
    hosts, slots, _ = merge_ranks([NODE.as_dict(), twin.as_dict()])
    assert [host.host for host in hosts] == ["node1 (10.0.0.1)", "node1 (10.0.0.2)"]
    assert slots == {"node1 (10.0.0.1)": 1, "node1 (10.0.0.2)": 1}
