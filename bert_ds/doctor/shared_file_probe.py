"""A probe file in a folder that should be shared: a host that sees it sees the same folder."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bert_ds.errors import ConfigError


@dataclass(frozen=True)
class SharedFileProbe:
    """A probe file and its content."""

    path: Path
    """The file."""
    content: str
    """Its content, which no other file has."""

    @property
    def as_argument(self) -> str:
        """The probe as a word of a command line."""
        return f"{self.content}@{self.path}"

    @classmethod
    def from_argument(cls, argument: str) -> SharedFileProbe:
        """Read what `as_argument` has written."""
        content, _, path = argument.partition("@")
        return cls(Path(path), content)

    def is_seen(self) -> bool:
        """Return whether the file is there, with this content."""
        try:
            return self.path.read_text(encoding="utf-8") == self.content
        except OSError:
            return False


@contextmanager
def probe_next_to(output_dir: Path | None) -> Iterator[SharedFileProbe | None]:
    """Write a probe into the run folder or the one above it that exists; remove it afterwards.

    Args:
        output_dir: the run folder; without one there is no probe.

    Raises:
        ConfigError: nothing can be written there.
    """
    if output_dir is None:
        yield None
        return
    above = (output_dir.absolute(), *output_dir.absolute().parents)
    folder = next(place for place in above if place.is_dir())
    content = secrets.token_hex(16)
    path = folder / f".bert_ds-doctor-{content[:8]}"
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as err:
        raise ConfigError(
            f"{folder} cannot be written to: {err.strerror or err}; choose another --output-dir"
        ) from err
    try:
        yield SharedFileProbe(path, content)
    finally:
        path.unlink(missing_ok=True)
