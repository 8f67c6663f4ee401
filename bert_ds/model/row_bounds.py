"""The bounds of rows that follow each other end to end.

Legend: T tokens of all rows, N heads, D head_dim, L tokens of one row.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch


class Rows(NamedTuple):
    """Where the rows lie."""

    cu_seqlens: torch.Tensor
    """int32 [rows + 1], where each row begins, and T; on the tokens' device."""
    max_seqlen: int
    """Tokens of the longest row."""


def row_spans(cu_seqlens: torch.Tensor, num_heads: int) -> Iterator[tuple[slice, slice]]:
    """Yield each row as a slice of the tokens and of the probabilities, without empty ones."""
    place = 0
    for start, end in pairwise(cu_seqlens.tolist()):
        size = num_heads * (end - start) ** 2
        if size:
            yield slice(start, end), slice(place, place + size)
        place += size


def heads_of_row(tensor: torch.Tensor, span: slice) -> torch.Tensor:
    """Turn [T, N, D] into the row's [N, L, D], a view."""
    return tensor[span].transpose(0, 1)
