"""Asking many hosts: who answers what, with a function in the place of ssh."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from bert_ds.doctor import hosts as module
from bert_ds.doctor.hosts import Answer, exchange_between, survey
from tests.unit.bert_ds.doctor.test_judge import NODE


def answer(values: dict[str, Any] | None, complaint: str = "", is_reachable: bool = True) -> Answer:
    return Answer(values, complaint, is_reachable, asked_at=100.0, answered_at=101.0)


def test_the_exchange_asks_all_hosts_at_once_however_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for all others: one that is asked later is never there."""
    number = 2 * module.AT_ONCE + 3
    together = threading.Barrier(number, timeout=20)
    found = {
        "num_ranks": number, "backend": "gloo", "latency_us": 1.0, "bandwidth_gb_per_s": 1.0,
        "is_right": True,
    }  # fmt: skip

    def ask(host: str, arguments: list[str], variables: dict[str, str]) -> Answer:
        together.wait()
        assert variables["WORLD_SIZE"] == str(number)
        return answer(found)

    monkeypatch.setattr(module, "ask", ask)
    facts = [replace(NODE, host=f"node{n}") for n in range(number)]
    assert [finding.level for finding in exchange_between(facts)] == ["ok"]


def test_who_did_not_take_part_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "ask", lambda host, *_: answer(None, f"{host} waits", is_reachable=True)
    )
    (finding,) = exchange_between([NODE, replace(NODE, host="node2")])
    assert finding.level == "error"
    assert finding.message == "node1: node1 waits; node2: node2 waits"


def test_a_survey_finds_each_host_once_and_what_is_wrong_with_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = replace(NODE, host="b", addresses=[("eth0", "10.0.0.2")], clock=163.0)
    answers = {
        "a": answer(replace(NODE, host="a", clock=101.0).as_dict()),
        "b": answer(other.as_dict()),
        "alias-of-b": answer(other.as_dict()),
        "down": answer(None, "No route to host", is_reachable=False),
        "bare": answer(None, "No module named bert_ds"),
        "old": answer({"versions": {"bert_ds": "0.0.9"}, "addresses": [], "more": 1}),
    }
    monkeypatch.setattr(module, "ask", lambda host, *_: answers[host])
    found = survey(list(answers), [])
    assert [facts.host for facts in found.facts] == ["a", "b", "alias-of-b"]
    assert found.clock_offsets == {"a": 0.0, "b": 62.0, "alias-of-b": 62.0}
    messages = "\n".join(finding.message for finding in found.findings)
    assert "b and alias-of-b are the same host (b)" in messages
    assert "down cannot be reached: No route to host" in messages
    assert "bert_ds does not work on bare: No module named bert_ds" in messages
    assert "bert_ds 0.0.9 on old is not the one of this host" in messages
    assert all(finding.way_out for finding in found.findings)
