"""Random streams that are functions of a key, so that nothing random has to be saved.

Dropout of a micro batch is seeded by (seed, phase, stream position of its first row): a resumed
run draws what the undisturbed one draws, whatever was computed in between.
"""

from __future__ import annotations

import hashlib


def keyed_bits(*key: int | str, bits: int = 128) -> int:
    """`bits` bits (a multiple of 8) that are a function of `key` alone, by BLAKE2b."""
    text = "\x1f".join(str(part) for part in key).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=bits // 8).digest(), "little")


def seed_dropout(seed: int, phase_index: int, position: int) -> None:
    """Seed torch's generators (CPU and every GPU) for the micro batch that begins at `position`."""
    import torch  # not above: processes that only read rows are keyed, too, and do without it

    torch.manual_seed(keyed_bits("dropout", seed, phase_index, position, bits=32))
