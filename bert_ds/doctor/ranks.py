"""Ask all ranks of a launcher: each looks at its host, and all take part in an all-reduce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch.distributed as torch_dist

from bert_ds.distributed.communicator import init_process_group, shutdown
from bert_ds.distributed.world import World
from bert_ds.doctor.exchange import Exchange, measure
from bert_ds.doctor.findings import Finding
from bert_ds.doctor.host_facts import HostFacts, Wanted, facts_from, look_at_this_host
from bert_ds.doctor.judge import judge
from bert_ds.doctor.shared_file_probe import probe_next_to
from bert_ds.train.setup import select_device


def examine_ranks(wanted: Wanted, world: World) -> list[Finding]:
    """Return the findings about the hosts of all ranks; all of them call it together."""
    device = select_device(world)
    init_process_group(world, device)
    with probe_next_to(wanted.output_dir if world.is_main else None) as written:
        probes = [written]
        torch_dist.broadcast_object_list(probes, src=0)
        # one rank of a host looks at its shards: the others' answers are left out below
        data = wanted.data if world.local_rank == 0 else None
        own = look_at_this_host(replace(wanted, probe=probes[0], data=data))
        gathered: list[Any] = [None] * world.world_size
        torch_dist.all_gather_object(gathered, own.as_dict())
    exchange = measure(world, device)
    shutdown()
    hosts, slots, offsets = merge_ranks(gathered)
    return [*judge(hosts, slots, offsets, wanted.config), exchange.as_finding()]


def merge_ranks(
    gathered: Sequence[Mapping[str, Any]],
) -> tuple[list[HostFacts], dict[str, int], dict[str, float]]:
    """Return the hosts of all ranks, under names of their own, ranks by host, and clock offsets.

    A host counts once, with the facts of its first rank. Hosts may have the same name and are then
    named by their addresses, too.
    """
    hosts: dict[str, HostFacts] = {}
    ranks: dict[str, int] = {}
    for values in gathered:
        facts = facts_from(dict(values))
        identity = f"{facts.host} {facts.addresses}"
        hosts.setdefault(identity, facts)
        ranks[identity] = ranks.get(identity, 0) + 1
    is_ambiguous = len({facts.host for facts in hosts.values()}) < len(hosts)
    names = {
        identity: f"{facts.host} ({facts.addresses[0][1]})" if is_ambiguous else facts.host
        for identity, facts in hosts.items()
    }
    first = next(iter(hosts.values())).clock
    return (
        [replace(facts, host=names[identity]) for identity, facts in hosts.items()],
        {names[identity]: number for identity, number in ranks.items()},
        {names[identity]: facts.clock - first for identity, facts in hosts.items()},
    )


def exchange_as_rank(world: World, timeout_s: float) -> Exchange:
    """Take part in the all-reduce between the hosts of a hostfile, as the rank of this host.

    Args:
        world: this rank.
        timeout_s: seconds until this rank ends by itself.
    """
    device = select_device(world)
    init_process_group(world, device, timeout_s, rendezvous_timeout_s=timeout_s / 2)
    measured = measure(world, device)
    shutdown()
    return measured
