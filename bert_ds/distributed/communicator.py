"""The process group and the few collectives that the training loop needs, under any launcher.

DeepSpeed reduces the gradients. This module joins the process group, sums small tensors, ends all
ranks together when one raises an error, and leaves the group in order. `world` holds rank and world
size. gloo serves CPUs, NCCL serves GPUs.

What makes this hard: collectives are matched by their order within a group. Every rank must call
the same ones in the same order, also a rank that has just failed; a rank that leaves one out makes
all others wait. So an error is exchanged before it is raised (`run_on_all_ranks`), decisions are
all-reduced instead of taken by each rank (`any_rank`), and the sums over later updates
(`begin_sum`), which each rank begins as soon as it has read the rows, have a group of their own: in
training's group they would come at another place on every rank.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.distributed as torch_dist
from torch._C._distributed_c10d import PrefixStore  # torch.distributed's, with types

from bert_ds.distributed.failure import membership
from bert_ds.distributed.master_address import export_master_address
from bert_ds.distributed.rendezvous import (
    RENDEZVOUS_S,
    choose_interface,
    monitor_of,
    rendezvous,
)
from bert_ds.distributed.world import World
from bert_ds.errors import BertDsError, LaunchError, PeerError

T = TypeVar("T")


def init_process_group(
    world: World,
    device: torch.device,
    timeout_s: float = 1800.0,
    heartbeat_s: float = 30.0,
    rendezvous_timeout_s: float = RENDEZVOUS_S,
) -> None:
    """Bring the ranks together; afterwards collectives work.

    Args:
        world: this process and how many there are.
        device: where tensors of the run live; decides the backend.
        timeout_s: seconds that a collective waits for a missing rank before it fails.
        heartbeat_s: seconds without a heartbeat after which a rank counts as lost, which ends the
            others; 0 for never.
        rendezvous_timeout_s: seconds without a further rank after which the missing ones count as
            lost.

    Raises:
        LaunchError: MASTER_ADDR is not known, ranks are missing, or they cannot exchange data.
        PeerError: a rank on another host has failed before the rendezvous.
    """
    backend = "nccl" if device.type == "cuda" else "gloo"
    timeout = datetime.timedelta(seconds=timeout_s)
    os.environ.setdefault("LOCAL_RANK", str(world.local_rank))  # deepspeed.initialize asks for it
    if world.world_size == 1:
        store = torch_dist.HashStore()  # type: ignore[attr-defined]  # missing in its stubs
        torch_dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout)
        membership.is_in_group = True
        return
    export_master_address(world)
    found = rendezvous(world, rendezvous_timeout_s)
    membership.monitor = monitor_of(world, found)
    membership.monitor.start(heartbeat_s)  # from here on no rank waits for one that is gone
    choose_interface(world, found)
    try:
        torch_dist.init_process_group(
            backend,
            store=PrefixStore("group", found.store),
            rank=world.rank,
            world_size=world.world_size,
            timeout=timeout,
        )
    except (RuntimeError, ValueError) as err:
        raise LaunchError(
            f"rank {world.rank} of {world.world_size} has found the others, and cannot exchange "
            "data with them (interface "
            f"{os.environ.get('GLOO_SOCKET_IFNAME', 'of the host name')}): {err}"
        ) from err
    membership.is_in_group = True


def shutdown() -> None:
    """Wait for all ranks and leave; without it DeepSpeed's processes can abort at exit."""
    if torch_dist.is_initialized():
        torch_dist.barrier()
    if membership.monitor is not None:
        membership.monitor.close()
        membership.monitor = None
    if torch_dist.is_initialized():
        torch_dist.destroy_process_group()
    membership.is_in_group = False


class Communicator:
    """The small collectives: on a CPU group for decisions, on the device for metrics."""

    def __init__(self, world: World, device: torch.device) -> None:
        self.world = world
        self.device = device
        self._cpu_group = (
            torch_dist.new_group(backend="gloo") if device.type != "cpu" else torch_dist.group.WORLD
        )
        self._ahead_group = torch_dist.new_group(backend="gloo")

    def all_reduce_ints(self, values: Sequence[int]) -> list[int]:
        """Return the element-wise sum of host integers over all ranks; waits for all of them."""
        tensor = torch.tensor(list(values), dtype=torch.int64)
        torch_dist.all_reduce(tensor, group=self._cpu_group)
        return [int(value) for value in tensor]

    def begin_sum(self, values: Sequence[int]) -> Callable[[], list[int]]:
        """Begin an element-wise sum of host integers over all ranks; the result waits for it.

        Ranks may begin at different times, in the same order among `begin_sum` and `begin_max`.
        """
        return self._begin(values, torch_dist.ReduceOp.SUM)

    def begin_max(self, values: Sequence[int]) -> Callable[[], list[int]]:
        """Begin to find the element-wise largest; as `begin_sum`."""
        return self._begin(values, torch_dist.ReduceOp.MAX)

    def _begin(
        self, values: Sequence[int], how: torch_dist.ReduceOp.RedOpType
    ) -> Callable[[], list[int]]:
        tensor = torch.tensor(list(values), dtype=torch.int64)
        work = torch_dist.all_reduce(tensor, how, group=self._ahead_group, async_op=True)

        def wait() -> list[int]:
            work.wait()
            return [int(value) for value in tensor]

        return wait

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a device tensor over all ranks, in place; does not wait for the device."""
        torch_dist.all_reduce(tensor)
        return tensor

    def any_rank(self, flag: bool) -> bool:
        """Return whether the flag is set on at least one rank: one answer for all."""
        return self.all_reduce_ints([int(flag)])[0] > 0

    def among_equals(self, value: int) -> tuple[int, int]:
        """Return this rank's place among the ranks that give the same number, and their number."""
        values = [0] * self.world.world_size
        values[self.world.rank] = value
        same = [rank for rank, other in enumerate(self.all_reduce_ints(values)) if other == value]
        return same.index(self.world.rank), len(same)

    def run_on_all_ranks(self, action: Callable[[], T]) -> T:
        """Run `action` on every rank; where it fails on one, every rank fails.

        Without this a rank that finds a broken file leaves, and the others wait for it.

        Raises:
            BertDsError: the action's own, on the lowest rank where it failed.
            PeerError: on all others.
        """
        result: T | None = None
        failure: BertDsError | None = None
        try:
            result = action()
        except BertDsError as err:
            failure = err
        codes = [0] * self.world.world_size
        codes[self.world.rank] = failure.exit_code if failure is not None else 0
        codes = self.all_reduce_ints(codes)
        if not any(codes):
            return result  # type: ignore[return-value]  # no failure: the action has returned a T
        first_failed = next(rank for rank, code in enumerate(codes) if code)
        if failure is not None and first_failed == self.world.rank:
            raise failure
        raise PeerError(first_failed, exit_code=codes[first_failed])

    def broadcast_text(self, text: str | None) -> str:
        """Return rank 0's text on every rank."""
        values = [text]
        torch_dist.broadcast_object_list(values, src=0, group=self._cpu_group)
        assert values[0] is not None, "rank 0 must give the text"
        return values[0]
