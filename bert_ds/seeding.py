"""Random streams that are functions of a key, so that nothing random has to be saved.

Dropout of a micro batch is seeded by (seed, phase, stream position of its first row): a resumed
run draws what the undisturbed one draws, whatever was computed in between.
"""

from __future__ import annotations

import hashlib

from data_prep.contract.randomness import keyed_hash


def keyed_bits(*key: int | str, bits: int = 128) -> int:
    """Return `bits` bits (a multiple of 8) that are a function of `key` alone."""
    return keyed_hash(*key, bits=bits, separator="\x1f")


def weight_seed(seed: int, name: str) -> int:
    """Return the seed of the initial values of a tensor.

    torch's CPU generator takes 32 bits. The hash differs from `keyed_bits` because runs that began
    with it must begin with the same weights today.
    """
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:4], "little")


def seed_dropout(seed: int, phase_index: int, position: int) -> None:
    """Seed torch's generators (CPU and every GPU) for the micro batch that begins at `position`."""
    import torch  # not above: processes that only read rows are keyed, too, and do without it

    torch.manual_seed(keyed_bits("dropout", seed, phase_index, position, bits=32))
