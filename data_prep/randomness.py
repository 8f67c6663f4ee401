"""Random numbers that depend on what they are for, never on who draws them.

Every stream is a Philox counter generator (Salmon et al. 2011) keyed with a BLAKE2b digest of its
purpose, so any worker that handles a document draws the same numbers for it. Of these streams only
`Generator.random` is used: its values are those of the bit stream, in every NumPy version.
"""

from __future__ import annotations

import hashlib

import numpy as np


def keyed_hash(*key: str | int) -> int:
    """A uniform 64-bit number that is a function of `key` alone."""
    return int.from_bytes(_digest(key, 8), "little")


def keyed_generator(*key: str | int) -> np.random.Generator:
    """A generator whose stream is a function of `key` alone."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(_digest(key, 16), "little")))


def _digest(key: tuple[str | int, ...], size: int) -> bytes:
    """BLAKE2b of `key`; parts are told apart by a separator that no number holds."""
    return hashlib.blake2b("\0".join(map(str, key)).encode(), digest_size=size).digest()
