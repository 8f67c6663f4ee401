"""Options of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("no deadline", deadline=None)  # speed stands in no test
settings.load_profile("no deadline")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bert-folder",
        type=Path,
        metavar="DIR",
        help="a published BERT as a Hugging Face folder, for the tests that compare with it",
    )


@pytest.fixture
def bert_folder(request: pytest.FixtureRequest) -> Path:
    """The folder that was given."""
    folder: Path | None = request.config.getoption("--bert-folder")
    if folder is None:
        pytest.skip("needs a published BERT: --bert-folder DIR")
    return folder
