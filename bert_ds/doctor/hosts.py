"""Ask the hosts of a hostfile over ssh, all at once.

They are asked in the way that the deepspeed launcher will start ranks on them: with the same
Python, from the same folder.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from bert_ds import __version__
from bert_ds.doctor.exchange import Exchange
from bert_ds.doctor.findings import Finding, has_errors
from bert_ds.doctor.host_facts import HostFacts, Wanted, facts_from
from bert_ds.doctor.hostfile import AT_ONCE, read_hostfile, ssh_command
from bert_ds.doctor.judge import judge
from bert_ds.doctor.shared_file_probe import probe_next_to
from bert_ds.plan import plan_run

T = TypeVar("T")

_ANSWER_S = 120.0
EXCHANGE_S = 90.0
"""A rank of the exchange ends by itself before `ask` gives it up."""
_SSH_FAILED = 255
_MARK = "bert_ds doctor: "
"""Begins the line with the answer: a login shell may print lines of its own."""


@dataclass(frozen=True)
class Answer:
    """The answer of one host."""

    values: dict[str, Any] | None
    """The JSON, or None where there was none."""
    complaint: str
    """Why there was none."""
    is_reachable: bool
    """Whether ssh itself worked."""
    asked_at: float
    """When it was asked, in seconds since 1970 by the clock of this host."""
    answered_at: float
    """When it answered, by the same clock."""


@dataclass(frozen=True)
class Survey:
    """The answers of all hosts."""

    facts: list[HostFacts]
    """Facts of the hosts that answered, under the hostfile's names."""
    clock_offsets: dict[str, float]
    """Seconds that each host's clock is ahead of the first one's."""
    findings: list[Finding]
    """Findings about hosts that did not answer, and hosts that are listed under two names."""


def print_answer(values: Mapping[str, Any]) -> None:
    """Print the answer of this host to the one that asks."""
    print(f"{_MARK}{json.dumps(values)}", flush=True)


def examine_hostfile(hostfile: Path, wanted: Wanted, arguments: Sequence[str]) -> list[Finding]:
    """Return the findings about the hosts of a hostfile.

    Args:
        hostfile: the file with one line per host.
        wanted: what the run needs of them.
        arguments: the same as arguments of `bert-ds doctor`.

    Raises:
        ConfigError: the hostfile is wrong, or the batch does not divide over its slots.
    """
    slots = read_hostfile(hostfile)
    if wanted.config is not None:
        plan_run(wanted.config, sum(slots.values()))  # raises where the batch does not divide
    with probe_next_to(wanted.output_dir) as probe:
        probing = ["--probe", probe.as_argument] if probe is not None else []
        found = survey(list(slots), [*arguments, *probing])
    findings = list(found.findings)
    if found.facts:
        findings += judge(found.facts, slots, found.clock_offsets, wanted.config)
    if not has_errors(findings):
        findings += exchange_between(found.facts)
    return findings


def survey(hosts: Sequence[str], arguments: Sequence[str]) -> Survey:
    """Ask every host for its facts.

    Args:
        hosts: names as in the hostfile.
        arguments: further arguments of `bert-ds doctor`, such as --recipe.
    """
    answers = _on_all(hosts, lambda host: ask(host, ["--facts", *arguments]))
    facts, findings, clocks = [], [], {}
    known: dict[tuple[str, str], str] = {}
    for host, answer in answers.items():
        if answer.values is None:
            findings.append(_no_answer(host, answer))
            continue
        try:
            sent = facts_from(answer.values)
        except (KeyError, TypeError):
            versions = dict(answer.values.get("versions") or {})
            message = (
                f"bert_ds {versions.get('bert_ds', '?')} on {host} is not the one of this host"
            )
            way_out = "install the same version on every host, or one environment that all share"
            findings.append(Finding("error", "versions", f"{message} ({__version__})", way_out))
            continue
        facts.append(replace(sent, host=host))
        clocks[host] = sent.clock - answer.answered_at
        itself = (sent.host, str(sent.addresses))
        if itself in known:
            message = f"{known[itself]} and {host} are the same host ({sent.host})"
            way_out = "name it once, with its slots added up"
            findings.append(Finding("error", "hostfile", message, way_out))
        known[itself] = host
    first = next(iter(clocks.values()), 0.0)
    return Survey(facts, {host: value - first for host, value in clocks.items()}, findings)


def exchange_between(facts: Sequence[HostFacts]) -> list[Finding]:
    """Start one rank on each host for an all-reduce, and return the finding about it."""
    if len(facts) < 2 or not facts[0].addresses:
        return []
    rendezvous = {"MASTER_ADDR": facts[0].addresses[0][1], "MASTER_PORT": str(facts[0].free_port)}
    ranks = {entry.host: rank for rank, entry in enumerate(facts)}

    def take_part(host: str) -> Answer:
        own = {"RANK": ranks[host], "WORLD_SIZE": len(facts), "LOCAL_RANK": 0,
               "LOCAL_WORLD_SIZE": 1}  # fmt: skip
        return ask(host, ["--exchange"], {**rendezvous, **{k: str(v) for k, v in own.items()}})

    # all at once: each waits for all others
    answers = _on_all([entry.host for entry in facts], take_part, at_once=len(facts))
    found = answers[facts[0].host].values
    if found is not None and all(answer.values is not None for answer in answers.values()):
        return [Exchange(**found).as_finding()]
    where = ":".join(rendezvous.values())
    message = "; ".join(f"{h}: {a.complaint}" for h, a in answers.items() if a.values is None)
    way_out = (
        f"open the network between the hosts for all ports (they use {where} and others), and see "
        "that each one's name and addresses are right"
    )
    return [Finding("error", "all-reduce", message, way_out)]


def ask(host: str, arguments: Sequence[str], variables: Mapping[str, str] | None = None) -> Answer:
    """Run `bert-ds doctor` on a host, by ssh.

    Args:
        host: the host's name.
        arguments: arguments of `bert-ds doctor`.
        variables: environment variables to set there.
    """
    names = ("PYTHONPATH", "DS_ACCELERATOR", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS")
    given = {name: os.environ[name] for name in names if name in os.environ}
    exported = {**given, **(variables or {})}
    exports = [f"{key}={shlex.quote(value)}" for key, value in exported.items()]
    command = [sys.executable, "-m", "bert_ds", "doctor", *arguments]
    remote = f"cd {shlex.quote(os.getcwd())} && {' '.join(exports)} {shlex.join(command)}"
    asked_at = time.time()
    try:
        done = subprocess.run(
            ssh_command(host, remote), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=_ANSWER_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as err:
        return Answer(None, str(err), isinstance(err, subprocess.TimeoutExpired), asked_at, 0.0)
    answered_at = time.time()
    for line in done.stdout.splitlines():
        _, mark, sent = line.partition(_MARK)
        if mark:
            values = json.loads(sent)
            return Answer(values, "", True, asked_at, answered_at)
    printed = [line for line in done.stderr.splitlines() if line.strip()]
    complaint = printed[-1].strip() if printed else f"nothing, exit code {done.returncode}"
    return Answer(None, complaint, done.returncode != _SSH_FAILED, asked_at, answered_at)


def _no_answer(host: str, answer: Answer) -> Finding:
    if not answer.is_reachable:
        way_out = (
            f"see that it is up, that sshd runs and that 'ssh {host} true' works without a "
            "password; or leave it out of the hostfile"
        )
        return Finding("error", "host", f"{host} cannot be reached: {answer.complaint}", way_out)
    way_out = (
        f"install the same environment there: {sys.executable} -m bert_ds must work from "
        f"{Path.cwd()} on every host"
    )
    return Finding("error", "host", f"bert_ds does not work on {host}: {answer.complaint}", way_out)


def _on_all(
    hosts: Sequence[str], action: Callable[[str], T], at_once: int = AT_ONCE
) -> dict[str, T]:
    with ThreadPoolExecutor(min(at_once, max(len(hosts), 1))) as pool:
        return dict(zip(hosts, pool.map(action, hosts), strict=True))
