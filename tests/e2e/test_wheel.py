"""The wheel: what is in it, and that its commands work where there is no clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("bert_ds", "data_prep", "ds_configs")


def checked(*command: str | Path, cwd: Path, **env: str) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built of a copy, since setuptools writes into what it builds; needs no network."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "sources"
    for name in SOURCES:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, copy / name)
    offline = ("--no-deps", "--no-index", "--no-build-isolation", "--no-cache-dir")
    checked(sys.executable, "-m", "pip", "wheel", *offline, "-w", folder, copy, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """A folder that holds the wheel alone; what it depends on is that of the tests."""
    target = wheel.parent / "installed"
    offline = ("--no-deps", "--no-index", "--no-cache-dir")
    checked(
        sys.executable, "-m", "pip", "install", *offline, "--target", target, wheel,
        cwd=wheel.parent,
    )  # fmt: skip
    return target


def test_the_wheel_holds_the_packages_the_kernel_the_recipes_and_nothing_else(wheel: Path) -> None:
    modules = [path for name in SOURCES for path in (ROOT / name).rglob("*.py")]
    recipes = (ROOT / "ds_configs").rglob("*.json")
    expected = {path.relative_to(ROOT).as_posix() for path in (*modules, *recipes)}
    expected |= {"bert_ds/optim/kernels/lamb.c", "ds_configs/README.md"}
    expected |= {"bert_ds/py.typed", "data_prep/py.typed"}
    names = zipfile.ZipFile(wheel).namelist()
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert "ds_configs/bert-large/recipe.json" in names


def test_the_commands_work_outside_the_clone(installed: Path, tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(installed)}
    where = "import bert_ds, data_prep; print(bert_ds.__file__, data_prep.__file__)"
    for path in checked(sys.executable, "-c", where, cwd=tmp_path, **env).split():
        assert Path(path).is_relative_to(installed)
    commands = installed / "bin"
    assert "pretrain" in checked(commands / "bert-ds", "--help", cwd=tmp_path, **env)
    assert "shards" in checked(commands / "bert-prep", "--help", cwd=tmp_path, **env)
    plan = ("plan", "--recipe", "bert-large", "--world-size", "64")
    assert "65,536" in checked(commands / "bert-ds", *plan, cwd=tmp_path, **env)
    epochs = (
        "from pathlib import Path; from data_prep.inspect.recipes import read_phases; "
        "print(*(phase.rows for phase in read_phases(Path('bert-large'))))"
    )
    printed = checked(sys.executable, "-c", epochs, cwd=tmp_path, **env)
    assert printed.split() == [str(65_536 * 7_038), str(32_768 * 1_563)]
