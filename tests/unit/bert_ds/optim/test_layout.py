"""Layouts without an engine: cutting, and what is refused."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bert_ds.errors import ConfigError, TrainingError
from bert_ds.optim import Lamb, param_groups, zero_layout
from bert_ds.optim.layout import FlatShard, Fragment, ShardLayout, fragments_within
from bert_ds.optim.zero_layout import TESTED_VERSIONS, check_version, read_layout

ROOT = Path(__file__).parents[4]


def test_a_parameter_that_straddles_two_ranks_is_cut_by_hand() -> None:
    spans = [(0, 0, 5), (1, 6, 4), (2, 10, 2)]  # one element of padding before parameter 1
    assert fragments_within(spans, 0, 8) == (Fragment(0, 0, 0, 5), Fragment(1, 6, 0, 2))
    assert fragments_within(spans, 8, 16) == (Fragment(1, 0, 2, 2), Fragment(2, 2, 0, 2))
    assert fragments_within(spans, 16, 24) == ()


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    gap=st.integers(0, 2),
    num_ranks=st.integers(1, 5),
)
def test_all_ranks_together_hold_every_element_once(
    sizes: list[int], gap: int, num_ranks: int
) -> None:
    spans, start = [], 0
    for number, size in enumerate(sizes):
        spans.append((number, start, size))
        start += size + gap
    length = -(-start // num_ranks)
    held: list[tuple[int, int]] = []
    for rank in range(num_ranks):
        for f in fragments_within(spans, rank * length, (rank + 1) * length):
            held += [(f.parameter, f.parameter_start + i) for i in range(f.numel)]
            assert rank * length + f.flat_start == spans[f.parameter][1] + f.parameter_start
    assert sorted(held) == [(n, i) for n, size in enumerate(sizes) for i in range(size)]


def test_an_engine_of_another_kind_is_refused_with_what_to_change() -> None:
    class FutureOptimizer:
        pass

    with pytest.raises(ConfigError, match=r"FutureOptimizer, whose layout is not known"):
        read_layout(FutureOptimizer(), torch.nn.Linear(2, 2))


@pytest.mark.parametrize("version", ["0.18.9", "0.19.9", "0.20.0", "1.0.0+cu124"])
def test_a_deepspeed_outside_the_tested_range_is_refused_with_the_way_out(version: str) -> None:
    with pytest.raises(ConfigError, match=rf"0\.19\.0 to 0\.19\.8, and {re.escape(version)} is"):
        check_version(version)


@pytest.mark.parametrize("version", ["0.19.0", "0.19.8", "0.19.8+cu124", "0.19.4"])
def test_a_deepspeed_of_the_tested_range_is_taken(version: str) -> None:
    check_version(version)


def test_the_tested_range_is_the_one_that_is_installed_with_the_package() -> None:
    oldest, newest = TESTED_VERSIONS
    assert f'"deepspeed>={oldest},<={newest}"' in (ROOT / "pyproject.toml").read_text()


def test_binding_reads_the_installed_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zero_layout.metadata, "version", lambda name: "0.42.0")
    with pytest.raises(ConfigError, match=r"0\.42\.0 is installed"):
        read_layout(object(), torch.nn.Linear(2, 2))


@pytest.mark.parametrize("kind", ["DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3"])
def test_a_renamed_attribute_is_reported_with_the_versions_that_have_it(kind: str) -> None:
    renamed = type(kind, (SimpleNamespace,), {})(real_dp_process_group=[None])
    with pytest.raises(TrainingError, match=r"known from 0\.19\.0 to 0\.19\.8 \(AttributeError"):
        read_layout(renamed, torch.nn.Linear(2, 2))


def test_a_bound_optimizer_refuses_tensors_that_it_does_not_know() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = Lamb(param_groups(model, 0.01), lr=0.1)
    flat = torch.zeros(6)
    names = ("weight", "bias")
    layout = ShardLayout(names, (torch.Size([2, 2]), torch.Size([2])), (FlatShard(flat, ()),), None)
    optimizer.bind(layout)
    model.weight.grad = torch.ones(2, 2)
    with pytest.raises(ConfigError, match="not in its layout"):
        optimizer.step()


def flat_linear() -> tuple[Lamb, torch.nn.Parameter]:
    """A bound optimizer over one linear layer whose weight and bias lie in two flat tensors."""
    model = torch.nn.Linear(2, 3)
    optimizer = Lamb(param_groups(model, 0.01), lr=0.1)
    flats = [torch.nn.Parameter(torch.ones(8)), torch.nn.Parameter(torch.ones(4))]
    shards = (
        FlatShard(flats[0], (Fragment(0, 0, 0, 6),)),
        FlatShard(flats[1], (Fragment(1, 0, 0, 3),)),
    )
    shapes = (torch.Size([3, 2]), torch.Size([3]))
    layout = ShardLayout(("weight", "bias"), shapes, shards, None)
    layout.check()
    optimizer.bind(layout)
    for group, flat in zip(optimizer.param_groups, flats, strict=True):
        group["params"] = [flat]
        flat.grad = torch.ones_like(flat)
    return optimizer, flats[0]


def test_a_bound_optimizer_goes_on_from_a_state_dict() -> None:
    optimizer, weight = flat_linear()
    optimizer.step()
    saved, kept = copy.deepcopy(optimizer.state_dict()), weight.detach().clone()
    weight.grad = torch.full_like(weight, 2.0)
    optimizer.step()
    expected = weight.detach().clone()
    optimizer.load_state_dict(saved)
    with torch.no_grad():
        weight.copy_(kept)
    weight.grad = torch.full_like(weight, 2.0)
    optimizer.step()
    assert torch.equal(weight[:6], expected[:6])
    assert optimizer.last_trust_ratios().keys() == {"weight", "bias"}


def test_a_bound_optimizer_is_not_copied() -> None:
    optimizer, _ = flat_linear()
    with pytest.raises(ConfigError, match="a bound LAMB cannot be copied"):
        copy.deepcopy(optimizer)


def test_binding_needs_names() -> None:
    layout = ShardLayout(("a",), (torch.Size([2]),), (FlatShard(torch.ones(2), ()),), None)
    with pytest.raises(ConfigError, match="give each group the `names`"):
        Lamb([torch.nn.Parameter(torch.ones(2))], lr=0.1).bind(layout)


def test_a_layout_whose_fragments_overlap_is_refused() -> None:
    shard = FlatShard(torch.zeros(4), (Fragment(0, 0, 0, 3), Fragment(1, 2, 0, 2)))
    layout = ShardLayout(("a", "b"), (torch.Size([3]), torch.Size([2])), (shard,), None)
    with pytest.raises(TrainingError, match="the layout of b overlaps"):
        layout.check()


def test_stepping_one_group_keeps_what_is_known_of_the_other() -> None:
    optimizer, weight = flat_linear()
    optimizer.step()
    before = optimizer.last_trust_ratios()
    both = optimizer.param_groups
    optimizer.param_groups = both[:1]  # as ZeRO does
    weight.grad = torch.full_like(weight, -3.0)
    optimizer.step()
    optimizer.param_groups = both
    after = optimizer.last_trust_ratios()
    assert after["bias"] == before["bias"]
    assert after["weight"] != before["weight"]


def test_binding_refuses_other_parameters_and_clipping_of_its_own() -> None:
    model = torch.nn.Linear(2, 2)
    layout = ShardLayout(("weight",), (torch.Size([2, 2]),), (FlatShard(torch.zeros(4), ()),), None)
    with pytest.raises(ConfigError, match=r"differ in their parameters: \['bias'\]"):
        Lamb(param_groups(model, 0.01), lr=0.1).bind(layout)
    with pytest.raises(ConfigError, match="gradient_clipping"):
        Lamb(param_groups(model, 0.01), lr=0.1, max_grad_norm=1.0).bind(layout)
