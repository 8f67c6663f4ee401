"""What is asked of the packages below: bounds, pins, and that they agree; and what checks it all.

`make resolve` asks the package index; these tests need no network.
"""

from __future__ import annotations

import os
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [
    entry.split(" :: ")[-1] for entry in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", entry)
]
PINNED_BY_TORCH = re.compile(r"triton|nvidia-.+|cuda-.+|pytorch-triton.*")
"""What PyPI's builds of torch for Linux pin; the CPU builds do not say so."""


def lines_of(text: str) -> list[Requirement]:
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [Requirement(line) for line in lines if line]


MAKEFILE = (ROOT / "Makefile").read_text()
CONSTRAINTS = lines_of((ROOT / "constraints.txt").read_text())


def on(python: str, requirements: list[Requirement]) -> list[Requirement]:
    """Those that count on a Python, on Linux x86-64."""
    environment = {
        "python_version": python, "python_full_version": f"{python}.1", "sys_platform": "linux",
        "platform_system": "Linux", "platform_machine": "x86_64", "extra": "",
    }  # fmt: skip
    return [r for r in requirements if r.marker is None or r.marker.evaluate(environment)]


def declared() -> list[Requirement]:
    """What pyproject.toml asks for, in any extra, but for the extras of the package itself."""
    entries = [*PROJECT["dependencies"]]
    for extra in PROJECT["optional-dependencies"].values():
        entries += extra
    return [r for r in map(Requirement, entries) if r.name != PROJECT["name"]]


def test_no_pin_is_one_that_torch_makes() -> None:
    """PyPI's torch 2.13.0 wants triton==3.7.1: with another pin here nothing can be installed."""
    of_torch = [Requirement(entry) for entry in metadata.requires("torch") or []]
    pinned = {canonicalize_name(r.name) for r in of_torch if "==" in str(r.specifier)}
    ours = {canonicalize_name(r.name) for r in CONSTRAINTS}
    assert not {name for name in ours if name in pinned or PINNED_BY_TORCH.fullmatch(name)}


def test_the_rule_on_names_covers_what_the_installed_torch_pins() -> None:
    of_torch = [Requirement(entry) for entry in metadata.requires("torch") or []]
    pinned = {canonicalize_name(r.name) for r in of_torch if "==" in str(r.specifier)}
    assert not {name for name in pinned if not PINNED_BY_TORCH.fullmatch(name)}


@pytest.mark.parametrize("python", PYTHONS)
def test_every_package_is_pinned_once_at_a_version_that_its_bounds_allow(python: str) -> None:
    pins = on(python, CONSTRAINTS)
    names = [canonicalize_name(pin.name) for pin in pins]
    assert len(names) == len(set(names))
    assert "torch" in names
    versions = dict(zip(names, pins, strict=True))
    for wanted in on(python, declared()):
        name = canonicalize_name(wanted.name)
        if name in versions:
            (pin,) = versions[name].specifier
            assert pin.operator == "=="
            assert wanted.specifier.contains(pin.version), f"{wanted} and {versions[name]}"
        else:
            assert python == "3.10" or PINNED_BY_TORCH.fullmatch(name), f"{name} has no pin"


@pytest.mark.parametrize("python", PYTHONS)
def test_what_the_installed_packages_ask_for_agrees_with_the_pins(python: str) -> None:
    """Each pinned package that is installed here at its pin, against all other pins."""
    pins = {canonicalize_name(r.name): next(iter(r.specifier)) for r in on(python, CONSTRAINTS)}
    for name, pin in pins.items():
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if Version(installed.version).public != pin.version:
            continue
        for wanted in on(python, [Requirement(entry) for entry in installed.requires or []]):
            other = pins.get(canonicalize_name(wanted.name))
            assert other is None or wanted.specifier.contains(other.version), f"{name}: {wanted}"


def test_the_supported_pythons_are_the_same_everywhere() -> None:
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert f"PYTHONS := {' '.join(PYTHONS)}\n" in MAKEFILE
    assert f"LOWEST_PYTHON ?= {PYTHONS[0]}\n" in MAKEFILE
    assert workflow_jobs()["quick"]["strategy"]["matrix"]["python"] == PYTHONS


def workflow_jobs() -> dict[str, Any]:
    """The jobs that a code host runs for each change."""
    text = (ROOT / ".github" / "workflows" / "checks.yml").read_text()
    jobs: dict[str, Any] = yaml.safe_load(text)["jobs"]
    return jobs


def make_targets() -> set[str]:
    (targets,) = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    return set(targets.split())


def test_a_code_host_runs_what_anybody_can_run() -> None:
    """Each step is a target of the Makefile or a script, so that a failure can be repeated."""
    called = []
    for job in workflow_jobs().values():
        commands = [step["run"] for step in job["steps"] if "run" in step]
        for command in commands:
            program, *arguments = command.split()
            if program == "make":
                assert set(arguments) <= make_targets()
            elif program != "apt-get":
                assert os.access(ROOT / program, os.X_OK), command
        called += commands
    assert {"make test-quick", "make check", "make docs", ".ci/run"} <= set(called)


def test_every_target_is_explained_by_make_help() -> None:
    explained = set(re.findall(r"^# make ([a-z-]+) ", MAKEFILE, re.MULTILINE))
    assert explained | {"help"} == make_targets()


def test_readme_names_the_cpu_build_of_the_pinned_torch() -> None:
    (pin,) = [r for r in CONSTRAINTS if r.name == "torch"]
    assert f"pip install torch{pin.specifier} --index-url" in (ROOT / "README.md").read_text()


def test_every_bound_is_a_version_and_has_no_upper_limit_but_deepspeeds() -> None:
    for wanted in declared():
        operators = sorted(part.operator for part in wanted.specifier)
        if wanted.name == "deepspeed":
            assert operators == ["<=", ">="]
        else:
            assert operators in (["=="], [">="]), str(wanted)
