"""`bert-ds doctor`: this host, the hosts of a hostfile, or all ranks of a launcher."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch.distributed as torch_dist

from bert_ds.config.loading import load_run_config
from bert_ds.config.recipe import RunConfig
from bert_ds.distributed.communicator import init_process_group, shutdown
from bert_ds.distributed.world import World
from bert_ds.doctor import hosts as over_ssh
from bert_ds.doctor.exchange import measure
from bert_ds.doctor.findings import Finding, as_json, as_text, has_errors
from bert_ds.doctor.host_facts import HostFacts, Wanted, facts_from, look_at_this_host
from bert_ds.doctor.hostfile import read_hostfile
from bert_ds.doctor.judge import judge
from bert_ds.doctor.shared_file_probe import Token, left_in, token_from
from bert_ds.errors import BertDsError, ConfigError
from bert_ds.plan import plan_run
from bert_ds.train.setup import select_device


class NotReadyError(BertDsError):
    """The doctor has found errors."""


def run(arguments: argparse.Namespace, world: World) -> None:
    """Look, and print what was found.

    Raises:
        NotReadyError: a run would fail, or be wrong.
    """
    config = None
    if arguments.recipe is not None:
        config = load_run_config(arguments.recipe, arguments.set)
    token = token_from(arguments.token) if arguments.token else None
    wanted = Wanted(config, arguments.data, arguments.output_dir, token)
    if arguments.facts:
        over_ssh.print_answer(look_at_this_host(wanted).as_dict())
        return
    if arguments.exchange:
        _exchange(world)
        return
    if arguments.hostfile is not None:
        findings = _of_hostfile(arguments, config)
    elif world.world_size > 1:
        findings = _of_ranks(wanted, world)
    else:
        facts = look_at_this_host(wanted)
        findings = judge([facts], {facts.host: 1}, {}, config)
    if world.is_main:
        _report(findings, arguments.json)


def _report(findings: Sequence[Finding], is_json: bool) -> None:
    print(json.dumps(as_json(findings), indent=2) if is_json else as_text(findings))
    if has_errors(findings):
        worst = [finding for finding in findings if finding.level == "error"]
        raise NotReadyError(
            f"not ready to run: {'; '.join(f'{entry.subject}: {entry.told}' for entry in worst)}"
        )


def _of_hostfile(arguments: argparse.Namespace, config: RunConfig | None) -> list[Finding]:
    slots = read_hostfile(arguments.hostfile)
    if config is not None:
        plan_run(config, sum(slots.values()))  # raises where the batch does not divide
    with _token(arguments.output_dir) as token:
        passed = _as_arguments(arguments, token)
        survey = over_ssh.survey(list(slots), passed)
    findings = list(survey.findings)
    if survey.facts:
        findings += judge(survey.facts, slots, survey.clock_offsets, config)
    if not has_errors(findings):
        findings += over_ssh.exchange_between(survey.facts)
    return findings


def _as_arguments(arguments: argparse.Namespace, token: Token | None) -> list[str]:
    """What the hosts are asked about."""
    passed: list[str] = []
    for flag, value in (
        ("--recipe", arguments.recipe),
        ("--data", arguments.data),
        ("--output-dir", arguments.output_dir),
    ):
        passed += [flag, str(Path(value).absolute())] if value is not None else []
    passed += ["--set", *arguments.set] if arguments.set else []
    passed += ["--token", token.as_argument] if token is not None else []
    return passed


@contextmanager
def _token(output_dir: Path | None) -> Iterator[Token | None]:
    """A file beside the run folder that all hosts must see."""
    if output_dir is None:
        yield None
        return
    above = (output_dir.absolute(), *output_dir.absolute().parents)
    folder = next(place for place in above if place.is_dir())
    try:
        with left_in(folder) as token:
            yield token
    except OSError as err:
        raise ConfigError(f"nothing can be written to {folder}: {err.strerror or err}") from err


def _of_ranks(wanted: Wanted, world: World) -> list[Finding]:
    """All ranks of a launcher look, each host once, and take part in the exchange."""
    device = select_device(world)
    init_process_group(world, device)
    with _token(wanted.output_dir if world.is_main else None) as written:
        tokens = [written]
        torch_dist.broadcast_object_list(tokens, src=0)
        # one rank of a host looks at its shards: what the others find is left out below
        data = wanted.data if world.local_rank == 0 else None
        own = look_at_this_host(replace(wanted, token=tokens[0], data=data))
        gathered: list[dict[str, object] | None] = [None] * world.world_size
        torch_dist.all_gather_object(gathered, own.as_dict())
    exchange = measure(world, device)
    shutdown()
    facts: dict[str, HostFacts] = {}
    slots: dict[str, int] = {}
    for entry in gathered:
        assert entry is not None
        of_rank = facts_from(entry)
        at = f"{of_rank.host} {of_rank.addresses}"  # hosts may have the same name
        facts.setdefault(at, of_rank)
        slots[at] = slots.get(at, 0) + 1
    first = next(iter(facts.values())).clock
    named = {at: entry.host for at, entry in facts.items()}
    if len(set(named.values())) < len(named):
        named = {at: f"{entry.host} ({entry.addresses[0][1]})" for at, entry in facts.items()}
    hosts = [replace(entry, host=named[at]) for at, entry in facts.items()]
    offsets = {named[at]: entry.clock - first for at, entry in facts.items()}
    slots = {named[at]: number for at, number in slots.items()}
    findings = judge(hosts, slots, offsets, wanted.config)
    return [*findings, exchange.as_finding()]


def _exchange(world: World) -> None:
    """One rank of the exchange between the hosts of a hostfile."""
    device = select_device(world)
    init_process_group(
        world, device, over_ssh.EXCHANGE_S, rendezvous_timeout_s=over_ssh.EXCHANGE_S / 2
    )
    measured = measure(world, device)
    shutdown()
    over_ssh.print_answer(vars(measured))
