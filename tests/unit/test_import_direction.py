"""Nothing imports upward: the rooms of the two packages, read from the sources.

A room is a folder of a package or a file in its root. An arrow leads from a room to one that it
imports from, however many imports that are.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Lower layers first. A room may import from itself and from the layers before its own; rooms of
# one layer do not know each other.
DATA_PREP_LAYERS = (
    ("contract",),
    ("running",),
    ("text",),
    ("pieces",),
    ("stages",),
    ("inspect",),
    ("bench",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
BERT_DS_LAYERS = (
    ("errors",),
    ("files", "seeding", "batch", "durations"),
    ("objectives",),
    ("config",),
    ("model", "optim", "data", "metrics", "report", "distributed"),
    ("engine",),
    ("checkpoint",),
    ("plan",),
    ("train",),
    ("bench", "inference", "doctor"),
    ("commands",),
    ("cli",),
    ("__main__",),
)
LAYERS = {"data_prep": DATA_PREP_LAYERS, "bert_ds": BERT_DS_LAYERS}
MOST_ROOMS = {"data_prep": 10, "bert_ds": 26}
MOST_ARROWS = {"data_prep": 35, "bert_ds": 95}


def imports_of(path: Path) -> set[str]:
    """Modules that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return found


def room_of(module: str) -> str:
    """`bert_ds.config.batch` -> `config`; the package itself -> ''."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def room_of_file(package: str, path: Path) -> str:
    room = path.relative_to(ROOT / package).parts[0].removesuffix(".py")
    return "" if room == "__init__" else room


def arrows_of(package: str) -> set[tuple[str, str]]:
    """Pairs of rooms of which the first imports from the second."""
    return {
        (room, target)
        for path in sources(package)
        for room in [room_of_file(package, path)]
        for module in imports_of(path)
        if module.split(".")[0] == package
        for target in [room_of(module)]
        if target and target != room
    }


@pytest.mark.parametrize("package", LAYERS)
def test_no_room_imports_upward(package: str) -> None:
    height = {room: number for number, rooms in enumerate(LAYERS[package]) for room in rooms}
    upward = [arrow for arrow in arrows_of(package) if not height[arrow[1]] < height[arrow[0]]]
    assert not upward


@pytest.mark.parametrize("package", LAYERS)
def test_the_picture_of_a_package_stays_small(package: str) -> None:
    rooms = {room_of_file(package, path) for path in sources(package)} - {""}
    assert rooms == {room for layer in LAYERS[package] for room in layer}
    assert len(rooms) <= MOST_ROOMS[package]
    assert len(arrows_of(package)) <= MOST_ARROWS[package]


@pytest.mark.parametrize("path", sources("bert_ds"), ids=lambda p: str(p.relative_to(ROOT)))
def test_bert_ds_enters_the_contract_of_data_prep_alone(path: Path) -> None:
    for module in imports_of(path):
        if module.split(".")[0] == "data_prep":
            assert room_of(module) == "contract", f"{path} imports {module}"


@pytest.mark.parametrize("path", sources("data_prep"), ids=lambda p: str(p.relative_to(ROOT)))
def test_data_prep_knows_neither_torch_nor_bert_ds(path: Path) -> None:
    modules = imports_of(path)
    assert not {m for m in modules if m.split(".")[0] in ("torch", "bert_ds", "deepspeed")}


def test_deepspeed_and_transformers_are_imported_in_their_places_alone() -> None:
    for path in sources("bert_ds"):
        roots = {module.split(".")[0] for module in imports_of(path)}
        name = path.relative_to(ROOT / "bert_ds").as_posix()
        assert "deepspeed" not in roots or name == "engine.py"
        assert "transformers" not in roots  # the bench loads it by name where it compares
