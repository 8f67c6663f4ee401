"""LAMB under ZeRO is LAMB: 20 updates with the real DeepSpeed against torch alone, one process."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import exact_lamb
from tests.support.exact_lamb import (
    MAX_GRAD_NORM,
    Case,
    Outcome,
    movement_error,
    ratio_error,
    train_in_one_process,
    train_in_ranks,
)
from tests.support.ranks import run_on_ranks
from tests.support.shared import made_once

pytestmark = pytest.mark.slow

MOVEMENT = 1e-6
"""Of the weights' way over 20 updates. Measured: 3.8e-7 to 7.6e-7; naive ratios 9e-2."""
RATIO = 1e-5
"""Relative, of a trust ratio. Measured: 8e-7 at most."""

OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
NVLAMB: dict[str, Any] = {"use_nvlamb": True}
DEEPSPEED: dict[str, Any] = {"variant": "deepspeed", "trust_ratio_bounds": (0.01, 0.3)}

LAYOUTS = {
    "zero 0": Case({"stage": 0}),
    "zero 1": Case({"stage": 1}),
    "zero 1, round robin": Case({"stage": 1, "round_robin_gradients": True}),
    "zero 1, accumulation": Case({"stage": 1}, accumulation=2),
    "zero 1, plain kernel": Case({"stage": 1}, lamb={"kernel": "plain"}),
    "zero 1, empty parameter": Case({"stage": 1}, with_empty=True),
    "zero 2": Case({"stage": 2}),
    "zero 2, round robin": Case({"stage": 2, "round_robin_gradients": True}),
    "zero 2, overlap": Case({"stage": 2, "overlap_comm": True}),
    "zero 2, accumulation": Case({"stage": 2}, accumulation=2),
    "zero 2, offload": Case({"stage": 2, **OFFLOAD}),
    "zero 2, offload, accumulation": Case({"stage": 2, **OFFLOAD}, accumulation=2),
    "zero 3": Case({"stage": 3}),
    "zero 3, sub-groups": Case({"stage": 3, "sub_group_size": 1000}),
    "zero 3, accumulation": Case({"stage": 3}, accumulation=2),
    "zero 3, offload": Case({"stage": 3, **OFFLOAD}),
    "zero 3, offload, accumulation": Case({"stage": 3, **OFFLOAD}, accumulation=2),
}
OTHER_SEMANTICS = {
    "zero 1, nvlamb": Case({"stage": 1}, lamb=NVLAMB),
    "zero 3, nvlamb": Case({"stage": 3, "sub_group_size": 1000}, lamb=NVLAMB),
    "zero 2, deepspeed": Case({"stage": 2}, lamb=DEEPSPEED),
}
NAIVE = {
    "zero 1, naive": Case({"stage": 1}, is_naive=True),
    "zero 3, naive": Case({"stage": 3}, is_naive=True),
}
HALF = {
    f"zero {stage}, {precision}": Case({"stage": stage}, precision=precision)
    for stage in (1, 2, 3)
    for precision in ("bf16", "fp16")
}
WORLD_SIZES = (1, 2, 3)
WORLD_SIZES_IN_SHORT = {
    "zero 1, round robin": (2, 3),
    "zero 1, accumulation": (3,),
    "zero 1, plain kernel": (2,),
    "zero 1, empty parameter": (2,),
    "zero 2": (1, 2),
    "zero 2, round robin": (2, 3),
    "zero 2, overlap": (3,),
    "zero 2, accumulation": (1, 2),
    "zero 2, offload": (2,),
    "zero 2, offload, accumulation": (1, 3),
    "zero 3": (1, 2),
    "zero 3, sub-groups": (3,),
    "zero 3, accumulation": (2,),
    "zero 3, offload": (2,),
    "zero 3, offload, accumulation": (1, 3),
    "zero 3, nvlamb": (2,),
    "zero 3, naive": (3,),
}
"""What is not named here is tested at every number of ranks. Chosen so that at each of them every
stage is seen, each of 2 and 3 with and without offload and accumulation, and round robin and
sub-groups where there are shards to differ. The rest of the product is in `make test-long`."""


def is_long(name: str, world_size: int) -> bool:
    return world_size not in WORLD_SIZES_IN_SHORT.get(name, WORLD_SIZES)


def at_world_sizes(
    names: Iterable[str], world_sizes: Iterable[int] = WORLD_SIZES
) -> pytest.MarkDecorator:
    """Every case at every number of ranks, some of them in `make test-long`."""
    return pytest.mark.parametrize(
        ("world_size", "name"),
        [
            pytest.param(size, name, marks=[pytest.mark.long] if is_long(name, size) else [])
            for size in world_sizes
            for name in names
        ],
    )


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Outcome of a case at a number of ranks, which one start of the ranks computes for many."""

    @cache
    def start(world_size: int, is_for_long: bool) -> dict[str, Outcome] | AssertionError:
        def make(folder: Path) -> None:
            folder.mkdir()
            (folder / "outcomes").write_bytes(pickle.dumps(compute(world_size, is_for_long)))

        name = f"exact-{world_size}-{'long' if is_for_long else 'short'}"
        kept = made_once(tmp_path_factory, name, make) / "outcomes"
        found: dict[str, Outcome] | AssertionError = pickle.loads(kept.read_bytes())
        return found

    def compute(world_size: int, is_for_long: bool) -> dict[str, Outcome] | AssertionError:
        every = LAYOUTS | OTHER_SEMANTICS | NAIVE | (HALF if world_size < 3 else {})
        cases = {k: case for k, case in every.items() if is_long(k, world_size) == is_for_long}
        folder = tmp_path_factory.mktemp("exact")
        try:
            found = run_on_ranks(
                world_size, train_in_ranks, folder, list(cases.values()), timeout_s=280
            )
        except AssertionError as err:
            return err
        return dict(zip(cases, found[0], strict=True))

    def of(name: str, world_size: int) -> Outcome:
        found = start(world_size, is_long(name, world_size))
        if isinstance(found, AssertionError):
            raise found
        return found[name]

    return of


@pytest.fixture(scope="module")
def reference() -> Any:
    """Outcomes of one process without an engine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as a rank: half-precision sums depend on it

    @cache
    def of(lamb: tuple[tuple[str, Any], ...] = (), precision: str = "fp32", parts: int = 1) -> Any:
        return train_in_one_process(dict(lamb), precision, parts)

    yield of
    torch.set_num_threads(before)


@at_world_sizes(LAYOUTS)
def test_weights_and_ratios_are_those_of_one_process(
    outcomes: Any, reference: Any, world_size: int, name: str
) -> None:
    found = outcomes(name, world_size)
    expected = reference()
    assert movement_error(found, expected) < MOVEMENT
    assert ratio_error(found, expected) < RATIO
    assert found.grad_norms == pytest.approx(expected.grad_norms, rel=1e-6)
    assert min(found.grad_norms) > MAX_GRAD_NORM  # clipping was active


@at_world_sizes(OTHER_SEMANTICS)
def test_other_semantics_are_those_of_one_process_too(
    outcomes: Any, reference: Any, world_size: int, name: str
) -> None:
    lamb = tuple(OTHER_SEMANTICS[name].lamb.items())
    found = outcomes(name, world_size)
    # uncorrected moments make the first updates large: 1.3e-6 was measured for the variant
    tolerance = 3 * MOVEMENT if "variant" in OTHER_SEMANTICS[name].lamb else MOVEMENT
    assert movement_error(found, reference(lamb)) < tolerance
    assert ratio_error(found, reference(lamb)) < RATIO
    assert movement_error(found, reference()) > 1e-2  # they are other semantics


@at_world_sizes(NAIVE)
def test_one_ratio_a_shard_fails_the_same_comparison(
    outcomes: Any, reference: Any, world_size: int, name: str
) -> None:
    error = movement_error(outcomes(name, world_size), reference())
    # NaN where ZeRO 3 has padding: one norm over a shard takes in memory that nobody has set
    assert not error < 1e4 * MOVEMENT


@at_world_sizes(HALF, (1, 2))
def test_half_precision_is_its_own_reference(
    outcomes: Any, reference: Any, world_size: int, name: str
) -> None:
    """Now and then a master weight at the border rounds to the other half-precision neighbour.

    From there on the runs differ by what half precision itself is worth: over 20 updates 6e-3
    (bf16) and 8e-4 (fp16) were measured, against 9e-2 for naive ratios.
    """
    precision = HALF[name].precision
    tolerance = {"bf16": 2e-2, "fp16": 3e-3}[precision]
    expected = reference((), precision, world_size)
    assert movement_error(outcomes(name, world_size), expected) < tolerance


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_first_update_in_half_precision_is_exact(
    precision: str,
    world_size: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before any rounding can differ: clipping, unscaling, ratios and the masters' arithmetic.

    (Stage 3 adds up half-precision gradients in another order.)
    """
    monkeypatch.setattr(exact_lamb, "NUM_STEPS", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    expected = train_in_one_process(precision=precision, num_parts=world_size)
    torch.set_num_threads(before)
    cases = [Case({"stage": stage}, precision=precision) for stage in (1, 2)]
    for found in run_on_ranks(world_size, one_update_in_ranks, tmp_path, cases)[0]:
        assert movement_error(found, expected) < MOVEMENT
        assert ratio_error(found, expected) < RATIO


def test_a_parameter_without_elements_is_refused_at_stage_3(tmp_path: Path) -> None:
    case = Case({"stage": 3}, with_empty=True)
    with pytest.raises(AssertionError, match=r"cannot fetch parameters without elements \(empty\)"):
        run_on_ranks(1, train_in_ranks, tmp_path, [case])


def one_update_in_ranks(world: Any, cases: list[Case]) -> list[Outcome]:
    exact_lamb.NUM_STEPS = 1
    return train_in_ranks(world, cases)
