"""Asks the hosts of a hostfile over ssh, all at once, as the deepspeed launcher will start them:
the same Python, from the same folder."""

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
from bert_ds.doctor.findings import Finding
from bert_ds.doctor.host_facts import HostFacts, facts_from
from bert_ds.doctor.hostfile import AT_ONCE, ssh_command

T = TypeVar("T")

_ANSWER_S = 120.0
EXCHANGE_S = 90.0
"""A rank of the exchange ends by itself before nobody listens to it any more."""
_SSH_FAILED = 255
_MARK = "bert_ds doctor: "
"""Begins the line with the answer: a login shell may print lines of its own."""


@dataclass(frozen=True)
class Answer:
    """What a host has sent.

    Attributes:
        values: the JSON, or None where there was none.
        complaint: why not.
        is_reachable: whether ssh itself worked.
        asked_at, answered_at: seconds since 1970 by the clock of this host.
    """

    values: dict[str, Any] | None
    complaint: str
    is_reachable: bool
    asked_at: float
    answered_at: float


@dataclass(frozen=True)
class Survey:
    """What all hosts have sent.

    Attributes:
        facts: of those that answered, under the hostfile's names.
        clock_offsets: seconds that their clocks are ahead of the first one's.
        findings: about those that did not, and hosts that stand twice under two names.
    """

    facts: list[HostFacts]
    clock_offsets: dict[str, float]
    findings: list[Finding]


def print_answer(values: Mapping[str, Any]) -> None:
    """The other end: what a host prints when it is asked."""
    print(f"{_MARK}{json.dumps(values)}", flush=True)


def survey(hosts: Sequence[str], arguments: Sequence[str]) -> Survey:
    """Ask every host for its facts.

    Args:
        hosts: names as in the hostfile.
        arguments: further ones of `bert-ds doctor`, such as --recipe.
    """
    answers = _on_all(hosts, lambda host: ask(host, ["--facts", *arguments]))
    facts, findings, clocks = [], [], {}
    known: dict[tuple[str, str], str] = {}
    for host, answer in answers.items():
        if answer.values is None:
            findings.append(_no_answer(host, answer))
            continue
        try:
            told = facts_from(answer.values)
        except (KeyError, TypeError):
            versions = dict(answer.values.get("versions") or {})
            message = (
                f"bert_ds {versions.get('bert_ds', '?')} on {host} is not the one of this host"
            )
            way_out = "install the same version on every host, or one environment that all share"
            findings.append(Finding("error", "versions", f"{message} ({__version__})", way_out))
            continue
        facts.append(replace(told, host=host))
        clocks[host] = told.clock - answer.answered_at
        itself = (told.host, str(told.addresses))
        if itself in known:
            message = f"{known[itself]} and {host} are the same host ({told.host})"
            way_out = "name it once, with its slots added up"
            findings.append(Finding("error", "hostfile", message, way_out))
        known[itself] = host
    first = next(iter(clocks.values()), 0.0)
    return Survey(facts, {host: value - first for host, value in clocks.items()}, findings)


def exchange_between(facts: Sequence[HostFacts]) -> list[Finding]:
    """Have one rank on each host take part in an all-reduce."""
    if len(facts) < 2 or not facts[0].addresses:
        return []
    place = {"MASTER_ADDR": facts[0].addresses[0][1], "MASTER_PORT": str(facts[0].free_port)}
    ranks = {entry.host: rank for rank, entry in enumerate(facts)}

    def take_part(host: str) -> Answer:
        own = {"RANK": ranks[host], "WORLD_SIZE": len(facts), "LOCAL_RANK": 0,
               "LOCAL_WORLD_SIZE": 1}  # fmt: skip
        return ask(host, ["--exchange"], {**place, **{k: str(v) for k, v in own.items()}})

    # all at once: each waits for all others
    answers = _on_all([entry.host for entry in facts], take_part, at_once=len(facts))
    found = answers[facts[0].host].values
    if found is not None and all(answer.values is not None for answer in answers.values()):
        return [Exchange(**found).as_finding()]
    where = ":".join(place.values())
    told = "; ".join(f"{h}: {a.complaint}" for h, a in answers.items() if a.values is None)
    way_out = (
        f"open the network between the hosts for all ports (they were to meet at {where}), and see "
        "that each one's name and addresses are right"
    )
    return [Finding("error", "all-reduce", told, way_out)]


def ask(host: str, arguments: Sequence[str], variables: Mapping[str, str] | None = None) -> Answer:
    """Run `bert-ds doctor` on a host, by ssh."""
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
    said = [line for line in done.stderr.splitlines() if line.strip()]
    complaint = said[-1].strip() if said else f"nothing, exit code {done.returncode}"
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
