"""No module but an objective's own knows it by name.

Docstrings and comments may speak of MLM and NSP, and the fields of the data contract keep their
names. What a model in Hugging Face's format calls its heads is known to the mapping alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "bert_ds"
OF_AN_OBJECTIVE = re.compile(r"(^|[^a-z])(mlm|nsp)|masked_lm|next_sentence", re.IGNORECASE)
FIELDS = {"masked_lm_positions", "masked_lm_ids", "next_sentence_label"}
"""Of a block of the data contract (`data_prep.contract.format`)."""
SOURCES = [
    path
    for path in sorted(ROOT.rglob("*.py"))
    if path.parent.name != "objectives" and not path.name.startswith("hf")
]


def words_of(tree: ast.AST) -> Iterator[str]:
    """Names and texts of a module, without docstrings."""
    docstrings = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
    }  # a text that stands alone documents what it stands by
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in docstrings:
                yield node.value
        else:
            for field in ("id", "attr", "arg", "name", "asname"):
                value = getattr(node, field, None)
                if isinstance(value, str):
                    yield value


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_names_an_objective(path: Path) -> None:
    words = {word for word in words_of(ast.parse(path.read_text())) if OF_AN_OBJECTIVE.search(word)}
    assert words <= FIELDS


def test_the_search_finds_names_and_texts_and_no_docstrings() -> None:
    tree = ast.parse('"""MLM."""\nmlm_loss = row["nsp"]\nloss.masked_lm(next_sentence=1)  # MLM\n')
    found = {word for word in words_of(tree) if OF_AN_OBJECTIVE.search(word)}
    assert found == {"mlm_loss", "nsp", "masked_lm", "next_sentence"}
