"""Random streams that are functions of a key, so that nothing random has to be saved.

Dropout of a micro batch is seeded by (seed, phase, stream position of its first row): a resumed
run draws the same numbers as an uninterrupted one, whatever was computed in between.
"""

from __future__ import annotations

import hashlib

from data_prep.contract.randomness import keyed_hash


def keyed_bits(*key: int | str, bits: int = 128) -> int:
    """Return `bits` bits (a multiple of 8) that are a function of `key` alone."""
    return keyed_hash(*key, bits=bits, separator="\x1f")


def weight_seed(seed: int, name: str) -> int:
    """Return the seed of a tensor's initial values, 32 bits for torch's CPU generator.

    The hash differs from `keyed_bits` so that initial weights stay those of earlier releases.
    """
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:4], "little")


def seed_dropout(seed: int, phase_index: int, position: int) -> None:
    """Seed torch's generators (CPU and every GPU) for dropout in a micro batch.

    Args:
        seed: the run's seed.
        phase_index: number of the phase in the recipe, from 0.
        position: stream position of the micro batch's first row.
    """
    import torch  # imported here, since processes that only read rows use this module without torch

    torch.manual_seed(keyed_bits("dropout", seed, phase_index, position, bits=32))
