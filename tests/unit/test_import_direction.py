"""Nothing imports upward: the layers of the two packages, read from the sources."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Lower layers first. A module may import its own layer and those before it.
BERT_DS_LAYERS = (
    ("errors",),
    ("files", "seeding", "batch", "world", "durations"),
    ("meeting", "peers"),
    ("rendezvous",),
    ("config", "dist"),
    ("model", "optim", "data", "metrics"),
    ("engine",),
    ("checkpoint",),
    ("plan",),
    ("train",),
    ("bench",),
    ("trained", "report", "doctor"),
    ("commands",),
    ("cli",),
    ("__main__",),
)
SEPARATE = ("model", "optim", "data", "metrics")
"""Parts of one layer that do not know each other."""
ALLOWED_BETWEEN_SEPARATE = {("metrics", "data"), ("optim", "model")}

DATA_PREP_BASE = {
    "compiled",
    "errors",
    "format",
    "manifest",
    "masking",
    "quality",
    "randomness",
    "screen",
    "wordpiece",
}
DATA_PREP_FOR_BERT_DS = DATA_PREP_BASE


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


def part_of(module: str) -> str:
    """`bert_ds.config.batch` -> `config`; the package itself -> ''."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def layer_of(part: str) -> int:
    return next(number for number, names in enumerate(BERT_DS_LAYERS) if part in names)


@pytest.mark.parametrize("path", sources("bert_ds"), ids=lambda p: str(p.relative_to(ROOT)))
def test_bert_ds_imports_downward(path: Path) -> None:
    part = path.relative_to(ROOT / "bert_ds").parts[0].removesuffix(".py")
    for module in imports_of(path):
        if module.startswith("bert_ds.") and part != "__init__":
            target = part_of(module)
            assert layer_of(target) <= layer_of(part), f"{part} imports {module}"
            if part in SEPARATE and target in SEPARATE and part != target:
                assert (part, target) in ALLOWED_BETWEEN_SEPARATE, f"{part} imports {module}"
        if module.startswith("data_prep"):
            assert part_of(module) in DATA_PREP_FOR_BERT_DS, f"{part} imports {module}"


@pytest.mark.parametrize("path", sources("data_prep"), ids=lambda p: str(p.relative_to(ROOT)))
def test_data_prep_knows_neither_torch_nor_bert_ds(path: Path) -> None:
    modules = imports_of(path)
    assert not {m for m in modules if m.split(".")[0] in ("torch", "bert_ds", "deepspeed")}
    if path.stem in DATA_PREP_BASE:
        inner = {part_of(module) for module in modules if module.startswith("data_prep.")}
        assert inner <= DATA_PREP_BASE


def test_deepspeed_and_transformers_are_imported_in_their_places_alone() -> None:
    for path in sources("bert_ds"):
        roots = {module.split(".")[0] for module in imports_of(path)}
        name = path.relative_to(ROOT / "bert_ds").as_posix()
        if "deepspeed" in roots:
            assert name in ("engine.py", "checkpoint.py", "optim/zero_layout.py")
        if "transformers" in roots:
            assert name == "model/hf.py"
