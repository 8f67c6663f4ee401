"""Rewrite a training command for the hosts that are left, when some no longer answer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bert_ds.doctor.hostfile import read_hostfile, unreachable_hosts
from bert_ds.errors import ConfigError

if TYPE_CHECKING:
    from bert_ds.config.recipe import RunConfig


def on_hosts_left(command: list[str], output_dir: Path) -> list[str]:
    """Return the command with a hostfile of the hosts that answer ssh, unchanged where all do.

    The batch stays that of the recipe, so only as many hosts are taken as it divides over. The
    hostfile is read each time; the shorter one is written into the run folder.

    Raises:
        ConfigError: the batch divides over no number of the hosts that are left.
    """
    given = Path(value_of(command, "--hostfile") or "")
    slots = read_hostfile(given)
    lost = unreachable_hosts(list(slots), value_of(command, "--ssh_port"))
    if not lost:
        return command
    if len(lost) == len(slots):
        sys.stderr.write("bert-ds supervise: no host answers ssh; trying all of them again\n")
        return command
    left = {host: number for host, number in slots.items() if host not in lost}
    config = _config_of(command)
    while left and config is not None and not _divides(config, left):
        left.popitem()
    named = "; ".join(f"{host}: {why}" for host, why in lost.items())
    if not left:
        raise ConfigError(
            f"hosts are lost ({named}), and train_batch_size divides over no number of the others "
            f"of {given}: replace the hosts, or choose a smaller micro batch"
        )
    output_dir.mkdir(parents=True, exist_ok=True)
    path = output_dir / "hosts"
    path.write_text("".join(f"{host} slots={number}\n" for host, number in left.items()))
    sys.stderr.write(
        f"bert-ds supervise: lost hosts ({named}); training on {', '.join(left)} ({path})\n"
    )
    sys.stderr.flush()
    if len(left) == 1 and "--force_multi" not in command:
        # deepspeed starts ranks of a single host on this one, whatever its name
        place = command.index("deepspeed") + 1 if "deepspeed" in command else 1
        command = [*command[:place], "--force_multi", *command[place:]]
    first = next(iter(slots))
    replaced = with_value(command, "--hostfile", str(path))
    if first in lost and value_of(command, "--master_addr") is not None:
        replaced = with_value(replaced, "--master_addr", next(iter(left)))
    return replaced


def value_of(command: list[str], flag: str) -> str | None:
    """Return the value of a flag in a command; None where it is not given."""
    for index, word in enumerate(command):
        if word == flag and index + 1 < len(command):
            return command[index + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def with_value(command: list[str], flag: str, value: str) -> list[str]:
    """Return the command with another value of a flag that it has.

    Args:
        command: the words of the command.
        flag: the flag, given as `--flag value` or `--flag=value`.
        value: its new value.
    """
    place = next(i for i, word in enumerate(command) if word.split("=")[0] == flag)
    length = 1 if "=" in command[place] else 2
    return [*command[:place], flag, value, *command[place + length :]]


def _config_of(command: list[str]) -> RunConfig | None:
    """Return the settings that the command trains with, loaded as the command loads them."""
    from bert_ds.config.loading import load_run_config

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--recipe", type=Path)
    parser.add_argument("--set", action="extend", nargs="+", default=[])
    known, _ = parser.parse_known_args(command)
    return load_run_config(known.recipe, known.set) if known.recipe is not None else None


def _divides(config: RunConfig, slots: Mapping[str, int]) -> bool:
    from bert_ds.plan import plan_run

    try:
        plan_run(config, sum(slots.values()))
    except ConfigError:
        return False
    return True
