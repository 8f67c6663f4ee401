"""Two or three hosts, and a tiny run that any of them can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, why_not
from tests.support.commands import deepspeed_pretrain, run
from tests.support.datasets import make_dataset
from tests.support.recipes import tiny_deepspeed, tiny_recipe, write_recipe
from tests.support.shared import made_once


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All that is here needs hosts; where they cannot be made, it is said why."""
    reason = why_not()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.slow)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all hosts see, with `data` and `recipe`.

    The recipe has two phases, no dropout, and a batch that divides over one, two and three ranks.
    Each test writes its run next to them, under its name.
    """

    def make(folder: Path) -> None:
        for length in (32, 64):
            make_dataset(folder / "data" / f"seq{length}", sequence_length=length)
        recipe = tiny_recipe(total_steps=(6, 4))
        recipe["model"] |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        settings = tiny_deepspeed(12, 2) | {"zero_optimization": {"stage": 2}}
        write_recipe(folder / "recipe", recipe, settings)

    return made_once(tmp_path_factory, "of-the-cluster", make)


@pytest.fixture(scope="session")
def on_one_host(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on this machine alone, on two ranks."""

    def make(output: Path) -> None:
        done = run(*deepspeed_pretrain(2, shared / "recipe", shared / "data", output))
        assert done.returncode == 0, done.stderr

    return made_once(tmp_path_factory, "on-one-host", make)


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[[int], Cluster]]:
    """Makes hosts that end with the test."""
    with ExitStack() as stack:

        def make(num_hosts: int) -> Cluster:
            folder = tmp_path / "cluster"
            folder.mkdir()
            return stack.enter_context(Cluster(num_hosts, folder))

        yield make
