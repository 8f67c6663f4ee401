"""The documents for people, read as data: pages, code blocks, commands, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "ds_configs" / "README.md",
    ROOT / "launchers" / "README.md",
)
RUN_PAGES = tuple(
    ROOT / "docs" / f"{name}.md" for name in ("tutorial", "python-api", "data-quality")
)
"""Pages whose commands and examples run one after the other in an empty folder with a corpus."""
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)

NOT_RUN = {
    "make demo": "tests/e2e/test_demo.py runs what it runs",
    "make test": "it is what runs the tests",
    "make .venv/bin/python": "it makes the environment that runs the tests",
    ".venv/bin/pip install": "it downloads a build of torch",
    "pip install": "it downloads; tests/unit/test_packaging.py checks names and bounds",
    ".venv/bin/python -m pytest": "it is a test itself",
    "python -m tests.support.seeded_runs": "it needs a commit, and minutes",
    "RANKS=": "tests/e2e/test_launcher_scripts.py and tests/cluster run the scripts",
    "HOSTFILE=": "tests/cluster runs it on two hosts",
    "MAX_RESTARTS=": "tests/cluster runs it on two hosts",
    "RECIPE=": "tests/cluster runs it under Slurm",
    "kubectl": "it needs Kubernetes; tests/e2e/test_launcher_scripts.py checks the manifest",
    "tensorboard": "it serves until it is stopped",
    "bert-ds bench": "minutes; tests/e2e/test_bench.py runs each on small models",
    "bert-ds doctor --hostfile": "tests/cluster runs it on two hosts",
    "bert-ds supervise": "tests/e2e/test_faults.py and tests/cluster run it",
    "bert-ds import-hf --model bert-base-uncased/": "it needs a published model; "
    "tests/unit/bert_ds/train/test_import_recipe.py imports small ones",
    "bert-ds pretrain --recipe ds_configs/bert-base": "fp16 needs a GPU; settings are checked",
    "bert-ds export-hf --run /shared": "the tutorial's export is run",
    "bert-prep vocab --input corpus/ --vocab-size 30522 --output /shared": "the tutorial's is run",
    "bert-prep shards --input corpus/ --vocab /shared": "the same",
    "bert-ds plan": "tests/e2e/test_bad_input.py plans; the arguments are checked",
}
"""Beginnings of commands that no test runs as they stand, each with the reason."""


class Block(NamedTuple):
    """A fenced block of code."""

    language: str
    """bash, python, text or nothing."""
    text: str
    """Its lines, without the indent of the fence."""

    @property
    def commands(self) -> list[str]:
        """The commands of a bash block, continued lines joined."""
        joined = re.sub(r"\\\n\s*", "", self.text)
        return [line.strip() for line in joined.splitlines() if line]


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page in order."""
    for indent, language, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        lines = [line.removeprefix(indent) for line in text.splitlines(keepends=True)]
        yield Block(language, "".join(lines))


def commands(page: Path) -> list[str]:
    """Return the shell commands of a page's bash blocks."""
    return [c for block in blocks(page) if block.language == "bash" for c in block.commands]


def reason_not_to_run(command: str) -> str | None:
    """Return why no test runs a command as it stands, or None for one that is run."""
    return next((why for start, why in NOT_RUN.items() if command.startswith(start)), None)


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def spans(page: Path) -> list[str]:
    """Return the inline code of a page."""
    return _SPAN.findall(prose(page))


def links(page: Path) -> list[str]:
    """Return the targets of a page's links and pictures."""
    return _LINK.findall(_SPAN.sub("", prose(page)))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as code hosts and MkDocs make them."""
    headings = (re.sub(r"[^\w\- ]", "", h.lower()).strip() for h in _HEADING.findall(prose(page)))
    return {heading.replace(" ", "-") for heading in headings}
