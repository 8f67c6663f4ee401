"""README and docs: links lead somewhere, commands and settings exist, generated parts are current.

`tests/e2e/test_documented_commands.py` runs the commands and examples.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert_ds.cli import build_parser
from bert_ds.config.loading import load_run_config
from data_prep.cli import build_parser as prep_parser
from tests.support.documents import (
    PAGES,
    ROOT,
    RUN_PAGES,
    anchors,
    commands,
    links,
    prose,
    reason_not_to_run,
    spans,
)
from tests.support.settings_reference import PAGE, current_page

ALL_PAGES = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
PARSERS = {"bert-ds": build_parser, "bert-prep": prep_parser}


@ALL_PAGES
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page}: {link}"
        assert not anchor or anchor in anchors(target), f"{page}: {link}"


def test_pages_of_the_site_link_to_pages_of_the_site() -> None:
    """MkDocs knows nothing outside docs/."""
    for page in (ROOT / "docs").glob("*.md"):
        assert not [link for link in links(page) if link.startswith("../")]


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert named == {page.name for page in (ROOT / "docs").glob("*.md")}


@pytest.mark.skipif(not importlib.util.find_spec("mkdocs"), reason="needs mkdocs: '.[docs]'")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_reference_of_settings_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    remedy = "run python -m tests.support.settings_reference --write"
    assert page == current_page(page), remedy


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@ALL_PAGES
def test_prose_has_at_most_100_columns(page: Path) -> None:
    lines = [line for line in prose(page).splitlines() if not line.startswith(("|", "!["))]
    assert not [line for line in lines if len(line) > 100]


def command_lines(page: Path) -> Iterator[list[str]]:
    """The commands of ours on a page, in blocks and in the text, cut into words."""
    for command in [*commands(page), *spans(page)]:
        if command.startswith(("bert-ds ", "bert-prep ")):
            yield shlex.split(command)


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """The options of a command and of its subcommands."""
    options = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            options |= {o for sub in action.choices.values() for o in options_of(sub)}
    return options


def subcommands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of the subcommands, by name."""
    (action,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


@ALL_PAGES
def test_commands_and_their_options_exist(page: Path) -> None:
    for words in command_lines(page):
        known = subcommands_of(PARSERS[words[0]]())
        name = words[1].rstrip(",")
        if not name.startswith("-"):
            assert name in known, " ".join(words)
        own = words[: words.index("--")] if "--" in words else words
        options = options_of(known[name]) if name in known else set()
        for word in own[2:]:
            option = word.partition("=")[0].rstrip(",")
            assert not option.startswith("--") or option in options, " ".join(words)


@ALL_PAGES
def test_whole_commands_are_accepted(page: Path) -> None:
    for command in commands(page):
        words = shlex.split(command)
        if words[0] in PARSERS:
            PARSERS[words[0]]().parse_args(words[1:])


@ALL_PAGES
def test_settings_that_commands_change_exist(page: Path) -> None:
    for words in map(shlex.split, commands(page)):
        if "--recipe" not in words or "--set" not in words:
            continue
        recipe = ROOT / words[words.index("--recipe") + 1]
        values = [word for word in words if re.fullmatch(r"[a-z_.0-9]+=\S+", word)]
        load_run_config(recipe, [value for value in values if "." in value.partition("=")[0]])


@ALL_PAGES
def test_settings_that_the_text_changes_exist(page: Path) -> None:
    recipe = ROOT / "ds_configs" / "bert-base"
    for span in spans(page):
        for value in re.findall(r"--set ((?:[a-z_.0-9]+=\w\S* ?)+)", span):
            if not value.rstrip().endswith("=N"):
                needed = ["evaluation.every_steps=500", *value.split()]
                load_run_config(recipe, needed)


@ALL_PAGES
def test_files_that_are_named_exist(page: Path) -> None:
    """Paths below the root in inline code; a name in capitals stands for one of the reader's."""
    for span in spans(page):
        for path in re.findall(
            r"(?:bert_ds|data_prep|tests|launchers|docs|ds_configs)/[\w./-]*", span
        ):
            assert (ROOT / path).exists(), f"{page}: {span}"


def test_tests_that_are_named_exist() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = {span for page in PAGES for span in spans(page) if re.fullmatch(r"test_\w+", span)}
    assert named
    assert not {name for name in named if f"def {name}(" not in tests}


@ALL_PAGES
def test_every_command_is_run_or_has_a_reason(page: Path) -> None:
    """Pages that tests/e2e/test_documented_commands.py runs from top to bottom need no reasons."""
    left = [command for command in commands(page) if reason_not_to_run(command) is None]
    assert page in RUN_PAGES or not left


def texts_of_the_code() -> str:
    """All texts in both packages, joined; constants are filled in, other values are left out."""
    sources = [p for package in ("bert_ds", "data_prep") for p in (ROOT / package).rglob("*.py")]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sources]
    constants = {
        target.id: node.value.value
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def text_of(part: ast.expr) -> str:
        if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name):
            return str(constants.get(part.value.id, "\0"))
        return str(part.value) if isinstance(part, ast.Constant) else "\0"

    nodes = [node for tree in trees for node in ast.walk(tree)]
    joined = ["".join(map(text_of, n.values)) for n in nodes if isinstance(n, ast.JoinedStr)]
    return "\n".join(joined + [text_of(n) for n in nodes if isinstance(n, ast.Constant)])


def test_messages_on_the_page_are_those_of_the_code() -> None:
    code = texts_of_the_code()
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 50
    messages = [m for row in rows for m in re.findall(r"`([^`]+)`", row.split("|")[1])]
    parts = {message: [part.strip(" ()'") for part in message.split("...")] for message in messages}
    assert not {message for message, found in parts.items() if any(p not in code for p in found)}
