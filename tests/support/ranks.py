"""Runs a function on several gloo ranks, each a process of its own, and never hangs."""

from __future__ import annotations

import os
import queue
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_dist

from bert_ds.distributed.world import World
from tests.support.forking import forking


def run_on_ranks(
    world_size: int, function: Callable[..., Any], folder: Path, *args: Any, timeout_s: float = 120
) -> list[Any]:
    """Call `function(world, *args)` on every rank and return the results by rank.

    Args:
        world_size: processes to start, by the server of `forking`.
        function: a module-level function; its result must pickle.
        folder: an empty place for the rendezvous file.
        args: further arguments.
        timeout_s: seconds after which all ranks are killed and the test fails.

    Raises:
        AssertionError: a rank failed or did not end; the message holds its traceback.
    """
    context = forking()
    results: Any = context.Queue()
    meeting_place = folder / f"rendezvous-{world_size}-{time.monotonic_ns()}"
    processes = [
        context.Process(
            target=_rank, args=(rank, world_size, str(meeting_place), function, args, results)
        )
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    try:
        return _collect(results, world_size, time.monotonic() + timeout_s)
    finally:
        for process in processes:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
                process.join()
        results.close()
        results.join_thread()


def _collect(results: Any, world_size: int, deadline: float) -> list[Any]:
    found: dict[int, Any] = {}
    while len(found) < world_size:
        try:
            rank, failure, value = results.get(timeout=max(0.1, deadline - time.monotonic()))
        except queue.Empty:
            missing = sorted(set(range(world_size)) - found.keys())
            raise AssertionError(f"ranks {missing} did not end in time") from None
        if failure is not None:
            raise AssertionError(f"rank {rank} failed:\n{failure}")
        found[rank] = value
    return [found[rank] for rank in range(world_size)]


def _rank(
    rank: int,
    world_size: int,
    meeting_place: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    results: Any,
) -> None:
    os.environ["LOCAL_RANK"] = str(rank)
    os.environ["DS_ACCELERATOR"] = "cpu"
    torch.set_num_threads(1)
    try:
        torch_dist.init_process_group(
            "gloo", init_method=f"file://{meeting_place}", rank=rank, world_size=world_size
        )
        value = function(World(rank, world_size, rank, world_size, "test"), *args)
        results.put((rank, None, value))
        torch_dist.barrier()
        torch_dist.destroy_process_group()
    except BaseException:
        results.put((rank, traceback.format_exc(), None))
        results.close()
        results.join_thread()
        os._exit(1)  # peers may wait for us in a collective: the parent ends them
