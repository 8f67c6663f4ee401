"""Processes forked from a server that has imported torch and DeepSpeed and done nothing with them.

To import them takes a process five seconds or more. The server has the environment of its first
use; nothing is forked from the process that runs the tests.
"""

from __future__ import annotations

import multiprocessing as mp
from multiprocessing.context import ForkServerContext


def forking() -> ForkServerContext:
    """The context whose processes begin with what `preloaded` imports."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.preloaded"])
    return context
