"""A file in a folder that is said to be shared: who sees it, sees the same folder."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Token:
    """Where the file is, and what it holds."""

    path: Path
    content: str

    @property
    def as_argument(self) -> str:
        """For a command line."""
        return f"{self.content}@{self.path}"

    def is_seen(self) -> bool:
        """Whether the file is there, with this content."""
        try:
            return self.path.read_text(encoding="utf-8") == self.content
        except OSError:
            return False


def token_from(argument: str) -> Token:
    """What `as_argument` gave."""
    content, _, path = argument.partition("@")
    return Token(Path(path), content)


@contextmanager
def left_in(folder: Path) -> Iterator[Token]:
    """A new token in a folder, which is taken away again.

    Raises:
        OSError: nothing can be written there.
    """
    content = secrets.token_hex(16)
    path = folder / f".bert_ds-doctor-{content[:8]}"
    path.write_text(content, encoding="utf-8")
    try:
        yield Token(path, content)
    finally:
        path.unlink(missing_ok=True)
