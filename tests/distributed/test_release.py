"""What a phase holds in memory is gone when the next one, a rollback or the evaluation begins."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bert_ds.distributed.world import World
from bert_ds.train import loop, phase, pretrain, setup
from tests.support.datasets import make_dataset
from tests.support.ranks import run_on_ranks
from tests.support.recipes import tiny_deepspeed, tiny_recipe, write_recipe
from tests.support.runs import pretrain_in_rank

pytestmark = pytest.mark.slow

OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
STAGES: dict[str, dict[str, Any]] = {
    "0": {"stage": 0},
    "1": {"stage": 1},
    "2 offload": {"stage": 2, **OFFLOAD},
    "3": {"stage": 3},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    for length in (32, 64):
        make_dataset(folder / "data" / f"seq{length}", sequence_length=length, num_train=100)
    write_recipe(folder / "recipe", tiny_recipe((4, 2)), tiny_deepspeed())
    return folder


def held_by(engine: Any) -> Iterator[tuple[str, Any]]:
    """A phase's engine, optimizer, model, weights, masters and moments, and DeepSpeed's objects."""
    yield "engine", engine
    yield "DeepSpeed's engine", engine._engine
    yield "DeepSpeed's optimizer", engine._engine.optimizer
    yield "LAMB", engine.optimizer
    yield "model", engine.model
    for name, parameter in engine.model.named_parameters():
        yield f"weight {name}", parameter
    for tensor, state in engine.optimizer.state.items():
        yield "master", tensor
        yield from (("moment", each) for each in state.values() if torch.is_tensor(each))


class Held:
    """Weak references to what phases hold; `alive` lists what is left of them, by moment."""

    def __init__(self) -> None:
        self.alive: list[list[str]] = []
        self._references: list[tuple[str, weakref.ref[Any]]] = []

    def keep(self, name: str, thing: Any) -> None:
        self._references.append((name, weakref.ref(thing)))

    def look(self) -> None:
        """Nothing is collected here: that is what is tested."""
        self.alive.append([name for name, reference in self._references if reference() is not None])


def watch_training(held: Held) -> None:
    """Look whenever a phase is built and when the last evaluation begins."""
    build, train, evaluate = setup.build_phase, loop.Loop.train, pretrain.evaluate_held_out
    load = phase.load_checkpoint

    def built(*arguments: Any) -> Any:
        held.look()
        return build(*arguments)

    def trained(self: loop.Loop) -> bool:
        held.look()  # the checkpoint that the phase began with is gone already
        try:
            return train(self)
        finally:
            for name, thing in held_by(self._engine):
                held.keep(name, thing)

    def loaded(path: Path) -> Any:
        checkpoint = load(path)
        for name, tensor in (checkpoint.weights | checkpoint.optimizer).items():
            held.keep(f"checkpoint's {name}", tensor)
        return checkpoint

    def evaluated(*arguments: Any) -> Any:
        held.look()
        return evaluate(*arguments)

    setup.build_phase, loop.Loop.train = built, trained
    phase.load_checkpoint, pretrain.evaluate_held_out = loaded, evaluated


def pretrain_and_watch(world: World, place: Path, run: Path, settings: list[str]) -> Any:
    held = Held()
    gc.disable()  # whatever Python's own collector would do by chance
    watch_training(held)
    pretrain_in_rank(world, place / "recipe", place / "data", run, settings)
    return held.alive, len(held._references)


@pytest.mark.parametrize("stage", STAGES)
def test_a_phase_leaves_nothing_to_the_next_one_nor_to_the_evaluation(
    place: Path, tmp_path: Path, stage: str
) -> None:
    settings = [f"deepspeed.zero_optimization={json.dumps(STAGES[stage])}"]
    for alive, number in run_on_ranks(
        2, pretrain_and_watch, tmp_path, place, tmp_path / "run", settings
    ):
        built, trained, built_again, trained_again, evaluated = alive
        assert number > 100
        assert (built, trained, trained_again, evaluated) == ([], [], [], [])
        assert {name.partition(" ")[0] for name in built_again} <= {"checkpoint's"}


def pretrain_diverging(world: World, place: Path, run: Path, settings: list[str]) -> Any:
    compute, poisoned = loop.compute_update, [16]

    def computed(engine: Any, update: Any, *rest: Any) -> Any:
        sums = compute(engine, update, *rest)
        return sums * float("nan") if update.position in poisoned else sums

    loop.compute_update = computed
    return pretrain_and_watch(world, place, run, settings)


def test_a_rollback_begins_with_nothing_of_what_has_diverged(place: Path, tmp_path: Path) -> None:
    settings = ["deepspeed.zero_optimization.stage=1", "divergence.action=rollback"]
    for alive, _ in run_on_ranks(
        2, pretrain_diverging, tmp_path, place, tmp_path / "run", settings
    ):
        assert len(alive) == 7  # phase 1 twice, phase 2, each built and trained, and the evaluation
        for names in alive:
            assert {name.partition(" ")[0] for name in names} <= {"checkpoint's"}
