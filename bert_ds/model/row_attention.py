"""Attention within rows that lie end to end, without padding.

Three ways, chosen by `attend`: on GPUs FlashAttention-2 (Dao 2023, arXiv:2307.08691) where the
package `flash-attn` is installed, else torch's attention of jagged nested tensors; on CPUs a row at
a time. `plain_attend` is the reference in a few lines, which tests hold the others against.

What must hold for all of them: a token attends to the tokens of its own row alone, so a model
computes the same for a row whatever its neighbours in the micro batch are. The bounds of the rows
stay on the device (`cu_seqlens`), and the longest length comes from the host (`max_seqlen`):
reading it from the device would make the host wait in every layer. Dropout draws other numbers in
each of the three, so results are equal, to rounding, without dropout only.

Legend: T tokens of all rows, H hidden_size, N heads, D head_dim = H / N, L tokens of one row.
"""

from __future__ import annotations

import functools
import math
from importlib import import_module
from typing import Any

import torch
from torch.nn import functional as F

from bert_ds.model.cpu.row_attention import row_attention
from bert_ds.model.dropout import dropout
from bert_ds.model.row_bounds import Rows, heads_of_row, row_spans

_HALF = (torch.float16, torch.bfloat16)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: Rows, p: float
) -> torch.Tensor:
    """Compute softmax(q k^T / sqrt(D)) v within each row, for every head.

    Args:
        query: [T, N, D].
        key: [T, N, D], of the same dtype.
        value: [T, N, D], of the same dtype.
        rows: where the rows lie.
        p: dropout of the probabilities.

    Returns:
        [T, N, D].
    """
    if query.device.type == "cpu":
        limits = (rows.cu_seqlens, rows.max_seqlen)
        mixed: torch.Tensor = row_attention(query, key, value, *limits, p)[0]
        return mixed
    flash = _flash_attention() if query.dtype in _HALF else None
    if flash is not None:
        ends, longest = rows.cu_seqlens, rows.max_seqlen
        flashed: torch.Tensor = flash(
            query, key, value, ends, ends, longest, longest, dropout_p=p,
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )  # fmt: skip
        return flashed
    return nested_attend(query, key, value, rows, p)


def nested_attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: Rows, p: float
) -> torch.Tensor:
    """Compute `attend` by torch's scaled_dot_product_attention of jagged nested tensors.

    Args:
        query: [T, N, D].
        key: [T, N, D], of the same dtype.
        value: [T, N, D], of the same dtype.
        rows: where the rows lie.
        p: dropout of the probabilities.
    """
    offsets = rows.cu_seqlens
    q, k, v = (
        torch.nested.nested_tensor_from_jagged(
            each, offsets, min_seqlen=1, max_seqlen=rows.max_seqlen
        ).transpose(1, 2)
        for each in (query, key, value)
    )
    mixed: torch.Tensor = F.scaled_dot_product_attention(q, k, v, dropout_p=p).transpose(1, 2)
    return mixed.values()


def plain_attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: Rows, p: float
) -> torch.Tensor:
    """Compute `attend` in plain tensor operations, row by row: the reference.

    Args:
        query: [T, N, D].
        key: [T, N, D], of the same dtype.
        value: [T, N, D], of the same dtype.
        rows: where the rows lie.
        p: dropout of the probabilities.
    """
    parts = []
    for span, _ in row_spans(rows.cu_seqlens, query.shape[1]):
        q, k, v = (heads_of_row(each, span) for each in (query, key, value))
        scores = q @ k.transpose(1, 2) / math.sqrt(query.shape[-1])
        parts.append((dropout(scores.softmax(dim=-1), p) @ v).transpose(0, 1))
    return torch.cat(parts)


@functools.cache
def _flash_attention() -> Any:
    """Return flash-attn's function for rows end to end; None where it is not installed."""
    try:
        return import_module("flash_attn").flash_attn_varlen_func
    except ImportError:
        return None
