"""Findings about hosts, from facts that differ in one thing each."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from bert_ds.config.loading import load_run_config
from bert_ds.config.recipe import RunConfig
from bert_ds.doctor.findings import Finding, as_json, as_text, has_errors
from bert_ds.doctor.host_facts import HostFacts, Wanted, facts_from, look_at_this_host
from bert_ds.doctor.judge import judge
from bert_ds.doctor.shared_file_probe import SharedFileProbe, probe_next_to
from tests.support.datasets import make_dataset
from tests.support.recipes import write_recipe

GIB = 1 << 30
NODE = HostFacts(
    host="node1",
    versions={"python": "3.11.7", "torch": "2.13.0", "deepspeed": "0.19.8", "triton": "3.5.0"},
    executable="/venv/bin/python",
    devices=["H100"] * 8,
    all_cores=64,
    cores=64,
    memory_bytes=512 * GIB,
    accelerator="cuda",
    precisions={"fp16": True},
    lamb="triton (Triton works here)",
    apex="missing",
    compiler="/usr/bin/cc",
    addresses=[("eth0", "10.0.0.1")],
    interface="",
    free_port=29500,
    clock=0.0,
    open_files=65536,
    shared_memory_bytes=64 * GIB,
    datasets={"seq128": {"fingerprint": "a" * 64, "vocabulary": "b" * 64}},
    sees_probe=True,
    free_bytes=100 * GIB,
)


def findings_of(
    *, slots: int = 8, offset: float = 0.0, config: RunConfig | None = None, **changes: Any
) -> list[Finding]:
    """Two hosts, of which the second differs."""
    other = replace(NODE, host="node2", addresses=[("eth0", "10.0.0.2")])
    hosts = [NODE, replace(other, **changes)]
    numbers = {"node1": slots, "node2": slots}
    return judge(hosts, numbers, {"node1": 0.0, "node2": offset}, config)


def messages_of(findings: list[Finding], level: str) -> str:
    return "\n".join(f"{f.subject}: {f.message}" for f in findings if f.level == level)


def test_equal_hosts_are_ready() -> None:
    findings = findings_of()
    assert {finding.level for finding in findings} == {"ok"}
    assert not has_errors(findings)
    assert {f.subject for f in findings} >= {"versions", "devices", "network", "clocks", "limits"}


@pytest.mark.parametrize(
    ("changes", "level", "message"),
    [
        (
            {"versions": NODE.versions | {"torch": "2.12.0"}},
            "error",
            "torch differs: 2.13.0 on node1; 2.12.0 on node2",
        ),
        (
            {"versions": {"python": "3.11.7"}},
            "error",
            "deepspeed differs: 0.19.8 on node1; missing",
        ),
        ({"versions": NODE.versions | {"triton": "3.4"}}, "warning", "triton differs: 3.5.0 on"),
        ({"devices": ["H100"] * 4}, "error", "node2 is to run 8 ranks and has 4 GPUs"),
        ({"devices": ["A100"] * 8}, "warning", "H100 on node1; A100 on node2"),
        ({"precisions": {"fp16": False}}, "error", "does not compute in fp16 on node2"),
        ({"lamb": "plain (no compiler)"}, "warning", "no fused LAMB on node2"),
        ({"apex": "another package of that name"}, "warning", "apex on node2 is not NVIDIA's"),
        ({"interface": "ib0"}, "error", "GLOO_SOCKET_IFNAME is ib0 on node2, which has eth0"),
        ({"addresses": []}, "error", "node2 has no address but the loopback"),
        ({"offset": -90.0}, "warning", "node2 is 90 s behind node1"),
        ({"sees_probe": False}, "error", "node2 does not see what node1 writes"),
        ({"unwritable": "/runs"}, "error", "/runs cannot be written on node2"),
        (
            {"datasets": {"seq128": {"fingerprint": "c" * 64, "vocabulary": "b" * 64}}},
            "error",
            "different data, fingerprint aaaaaaaaaaaa on node1; cccccccccccc on node2",
        ),
        ({"datasets": {"seq128": {"wrong": "no manifest"}}}, "error", "no manifest (on node2)"),
        ({"open_files": 256}, "warning", "node2 allows 256 open files"),
        ({"shared_memory_bytes": 64 << 20}, "warning", "node2 has 64 MiB"),
    ],
)
def test_what_differs_is_named_with_its_host_and_a_way_out(
    changes: dict[str, Any], level: str, message: str
) -> None:
    findings = findings_of(**changes)
    assert message in messages_of(findings, level)
    assert all(finding.way_out for finding in findings if finding.level != "ok")
    assert has_errors(findings) == (level == "error")


def test_a_rank_that_is_bound_to_one_core_is_a_warning() -> None:
    (found,) = (entry for entry in findings_of(cores=1) if entry.subject == "cores")
    assert found.level == "warning"
    assert found.message == "a rank on node2 may use one of its 64 CPU cores"
    assert "--bind-to none" in found.way_out


def test_more_ranks_than_cores_is_a_warning() -> None:
    findings = findings_of(slots=80, devices=[])
    assert "node2 is to run 80 ranks on 64 CPU cores" in messages_of(findings, "warning")


@pytest.mark.parametrize(("gib", "level"), [(0.5, "error"), (1.1, "warning"), (100, "ok")])
def test_the_disk_must_hold_the_checkpoints(gib: float, level: str) -> None:
    """12 bytes a parameter: 0.409 GiB a checkpoint, two at least, three with keep_last 2."""
    shape = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
    config = RunConfig.model_validate(
        {
            "recipe": "r",
            "model": {"vocab_size": 48_000, "intermediate_size": 1024, **shape},
            "checkpoint": {"keep_last": 2},
            "phases": [
                {
                    "name": "phase1",
                    "sequence_length": 128,
                    "max_predictions_per_seq": 20,
                    "total_steps": 10,
                    "schedule": {"kind": "linear"},
                    "deepspeed": {
                        "train_batch_size": 8,
                        "train_micro_batch_size_per_gpu": 8,
                        "gradient_clipping": 1.0,
                        "optimizer": {"type": "Lamb", "params": {"lr": 0.01}},
                    },
                }
            ],
        }
    )
    nodes = [replace(NODE, free_bytes=int(gib * GIB))]
    found = [f for f in judge(nodes, {}, {}, config) if f.subject == "disk"]
    assert [finding.level for finding in found] == [level]


def test_text_ends_with_the_worst_and_json_holds_all() -> None:
    findings = findings_of(sees_probe=False, open_files=1)
    lines = as_text(findings).splitlines()
    assert lines[0].startswith("ok ")
    assert lines[-3].startswith("error    shared folder")
    assert lines[-2].strip().startswith("-> mount the same file system")
    assert lines[-1].startswith("1 errors, 1 warnings, ")
    found = as_json(findings)
    assert found["is_ready"] is False
    assert len(found["findings"]) == len(findings)


def test_facts_of_this_host_travel_as_json(tmp_path) -> None:
    with probe_next_to(tmp_path / "run") as probe:
        again = SharedFileProbe.from_argument(probe.as_argument)
        facts = look_at_this_host(Wanted(output_dir=tmp_path / "run", probe=again))
        assert facts.sees_probe is True
        assert not SharedFileProbe(probe.path, "other").is_seen()
    assert not probe.path.exists()
    assert facts.free_bytes
    assert facts.versions["torch"]
    assert facts.cores >= 1
    assert facts_from(facts.as_dict()) == facts


def test_a_dataset_that_does_not_fit_the_recipe_is_an_error(tmp_path) -> None:
    make_dataset(tmp_path / "seq32", sequence_length=32)
    config = load_run_config(write_recipe(tmp_path / "recipe"), [])
    fits = look_at_this_host(Wanted(config=config, data=tmp_path))
    assert fits.datasets["seq32"].keys() == {"fingerprint", "vocabulary"}
    assert "no such folder" in fits.datasets["seq64"]["wrong"]
    larger = load_run_config(tmp_path / "recipe", ["model.vocab_size=80"])
    facts = look_at_this_host(Wanted(config=larger, data=tmp_path))
    errors = [e.message for e in judge([facts], {facts.host: 1}, {}, larger) if e.level == "error"]
    assert any("does not fit the recipe: its vocabulary has" in message for message in errors)


def test_shares_that_make_a_dataset_worthless_are_a_warning_once(tmp_path) -> None:
    make_dataset(tmp_path / "seq32", sequence_length=32, num_valid=0)
    make_dataset(tmp_path / "seq64", sequence_length=64, num_valid=120)
    config = load_run_config(write_recipe(tmp_path / "recipe"), [])
    facts = look_at_this_host(Wanted(config=config, data=tmp_path))
    assert facts_from(json.loads(json.dumps(facts.as_dict()))) == facts
    other = replace(facts, host="node2")
    findings = judge([facts, other], {facts.host: 1, "node2": 1}, {}, config)
    warned = [f for f in findings if f.subject.startswith("rows of") and f.level == "warning"]
    assert [(f.subject, f.message.partition(" (")[0]) for f in warned] == [
        ("rows of seq32", "held-out rows: there are none")
    ]
    assert "--valid-fraction" in warned[0].way_out
    assert not any(f.level == "error" and f.subject.startswith("dataset") for f in findings)
