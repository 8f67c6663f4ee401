"""A hostfile as the deepspeed launcher reads it, with errors where the launcher has none."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bert_ds.errors import ConfigError

CONNECT_S = 10
"""Seconds that a host has to answer ssh."""
AT_ONCE = 64
_LINE = re.compile(r"(\S+)\s+slots=([1-9][0-9]*)")


def read_hostfile(path: Path) -> dict[str, int]:
    """Read the slots of each host, in the file's order.

    Raises:
        ConfigError: the file is missing or empty, or a line is malformed or names a host again.
    """
    if not path.is_file():
        raise ConfigError(
            f"hostfile {path} is missing; it has a line a host, such as 'node1 slots=8' (deepspeed "
            "itself would train on this host alone)"
        )
    slots: dict[str, int] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        found = _LINE.fullmatch(entry)
        if found is None:
            raise ConfigError(
                f"hostfile {path}, line {number}: a line must be like 'node1 slots=8', with at "
                f"least one slot; this is '{entry}'"
            )
        if found[1] in slots:
            raise ConfigError(
                f"hostfile {path}, line {number} names {found[1]} twice; add its slots up in one "
                "line"
            )
        slots[found[1]] = int(found[2])
    if not slots:
        raise ConfigError(f"hostfile {path} names no host; a line a host: node1 slots=8")
    return slots


def ssh_command(host: str, remote: str, port: str | None = None) -> list[str]:
    """Return an ssh command that never prompts, with the options that pdsh is given, too.

    Args:
        host: the host's name.
        remote: the shell command to run there.
        port: ssh's port there; None for its default.
    """
    return [
        "ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}",
        "-o", "ServerAliveInterval=5", *shlex.split(os.environ.get("PDSH_SSH_ARGS_APPEND", "")),
        *(["-p", port] if port else []), host, remote,
    ]  # fmt: skip


def unreachable_hosts(hosts: Sequence[str], port: str | None = None) -> dict[str, str]:
    """Return the hosts that do not answer ssh, each with the reason.

    Args:
        hosts: the hosts' names.
        port: ssh's port on all of them; None for its default.
    """

    def knock(host: str) -> str | None:
        try:
            done = subprocess.run(
                ssh_command(host, "true", port), stdin=subprocess.DEVNULL, capture_output=True,
                text=True, timeout=3 * CONNECT_S,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as err:
            return str(err)
        return None if done.returncode == 0 else (done.stderr.strip() or f"code {done.returncode}")

    with ThreadPoolExecutor(min(AT_ONCE, max(len(hosts), 1))) as pool:
        answers = dict(zip(hosts, pool.map(knock, hosts), strict=True))
    return {host: why for host, why in answers.items() if why is not None}
