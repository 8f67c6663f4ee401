"""Words that readers would have to guess at: plainer ones are in use for what they mean.

Documents, code, comments and messages are searched alike.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUFFIXES = {"", ".c", ".md", ".py", ".sbatch", ".sh", ".toml", ".yaml", ".yml"}
PLAINER = {
    r"anew": "again",
    r"askew": "not aligned",
    r"beside": "next to, besides, while",
    r"but once": "only once",
    r"for ever": "forever, without end",
    r"for want of": "because there is no",
    r"(go|goes|going|gone|went) on with": "resume, continue with",
    r"hear(s|d)?": "learn, receive",
    r"mend(s|ed|ing)?": "repair",
    r"meeting": "rendezvous",
    r"(?<!\.)tell(s|ing)?|told": "log, report, raise, send",
    r"whereupon": "and then",
    r"whoever": "the process that, the one who",
}
"""Patterns of whole words, and what to write instead."""
SEARCHED = (
    "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "Makefile", "pyproject.toml", ".ci", ".github",
    "bert_ds", "data_prep", "docs", "ds_configs", "launchers", "tests",
)  # fmt: skip


def texts(top: str) -> list[Path]:
    """The text files of a top-level folder, or the file itself."""
    paths = sorted((ROOT / top).rglob("*")) if (ROOT / top).is_dir() else [ROOT / top]
    is_text = [p for p in paths if p.is_file() and p.suffix in SUFFIXES]
    assert is_text, f"nothing to search in {top}"
    return [path for path in is_text if path != Path(__file__)]


@pytest.mark.parametrize("top", SEARCHED)
def test_text_is_plain(top: str) -> None:
    places = []
    for path in texts(top):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            for pattern, plainer in PLAINER.items():
                for word in re.finditer(rf"\b({pattern})\b", line, re.IGNORECASE):
                    place = f"{path.relative_to(ROOT)}:{number}"
                    places.append(f"{place}: '{word[0]}'; write: {plainer}")
    assert not places, "\n".join(places)
