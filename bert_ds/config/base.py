"""The base of all configuration models: frozen, and strict about unknown keys."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class FrozenConfig(BaseModel):
    """A settings object: immutable, strict about unknown keys, each field documented in place."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
