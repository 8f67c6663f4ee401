"""Attention within rows that lie end to end, without padding.

Three ways, chosen by `attend`: on GPUs FlashAttention-2 (Dao 2023, arXiv:2307.08691) where the
package `flash-attn` is installed, else torch's attention of jagged nested tensors; on CPUs a row at
a time. `plain_attend` is the reference in a few lines.

Legend: T tokens of all rows, H hidden_size, N heads, D head_dim = H / N, L tokens of one row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from bert_ds.model.dropout import draw_and_drop_into, drop, drop_in_place, dropout

_HALF = (torch.float16, torch.bfloat16)
_RANDOM = (torch.Tag.nondeterministic_seeded,)


class Rows(NamedTuple):
    """Where the rows lie.

    Attributes:
        cu_seqlens: int32 [rows + 1], where each row begins, and T; on the tokens' device.
        max_seqlen: tokens of the longest row.
    """

    cu_seqlens: torch.Tensor
    max_seqlen: int


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: Rows, p: float
) -> torch.Tensor:
    """softmax(q k^T / sqrt(D)) v within each row, for every head.

    Args:
        query, key, value: [T, N, D] of one dtype.
        rows: where the rows lie.
        p: dropout of the probabilities.

    Returns:
        [T, N, D].
    """
    if query.device.type == "cpu":
        limits = (rows.cu_seqlens, rows.max_seqlen)
        mixed: torch.Tensor = _row_attention(query, key, value, *limits, p)[0]
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
    """`attend` by torch's scaled_dot_product_attention of jagged nested tensors."""
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
    """`attend` in plain tensor operations, row by row: the reference."""
    parts = []
    for span, _ in _spans(rows.cu_seqlens, query.shape[1]):
        q, k, v = (_heads(each, span) for each in (query, key, value))
        scores = q @ k.transpose(1, 2) / math.sqrt(query.shape[-1])
        parts.append((dropout(scores.softmax(dim=-1), p) @ v).transpose(0, 1))
    return torch.cat(parts)


@functools.cache
def _flash_attention() -> Any:
    """flash-attn's function for rows end to end; None where it is not installed."""
    try:
        return import_module("flash_attn").flash_attn_varlen_func
    except ImportError:
        return None


@torch.library.custom_op("bert_ds::row_attention", mutates_args=(), tags=_RANDOM)
def _row_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    p: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A row at a time: a row's scores stay in the cache, and rows of one length gain nothing.

    The way back needs the probabilities, and a byte each for dropout; autograd on `plain_attend`
    would keep the probabilities before and after dropout.

    Returns:
        [T, N, D]; probabilities [N * T * max_seqlen], of which those of the rows take the
        beginning and the rest is never touched; bool [the same] or [0], which of them stay.
    """
    num_tokens, num_heads, head_dim = query.shape
    result = torch.empty(query.shape, dtype=query.dtype)
    size = num_heads * num_tokens * max_seqlen
    all_probabilities = torch.empty(size, dtype=query.dtype)
    all_keep = torch.empty(size if p else 0, dtype=torch.bool)
    for span, place in _spans(cu_seqlens, num_heads):
        q, k, v = (_heads(each, span) for each in (query, key, value))
        scores = _product(q, k.transpose(1, 2), 1 / math.sqrt(head_dim))
        probabilities = all_probabilities[place].view(scores.shape)
        torch.softmax(scores, dim=-1, out=probabilities)
        if p:
            draw_and_drop_into(probabilities, p, scores, all_keep[place].view(scores.shape))
        _heads(result, span).copy_(torch.bmm(scores if p else probabilities, v))
    return result, all_probabilities, all_keep


@_row_attention.register_fake
def _(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    p: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    size = query.shape[1] * query.shape[0] * max_seqlen
    probabilities = query.new_empty(size)
    return (
        query.new_empty(query.shape),
        probabilities,
        query.new_empty(size if p else 0, dtype=torch.bool),
    )


@torch.library.custom_op("bert_ds::row_attention_backward", mutates_args=())
def _row_attention_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    all_probabilities: torch.Tensor,
    all_keep: torch.Tensor,
    p: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of query, key and value, each [T, N, D]."""
    results = (torch.empty_like(query), torch.empty_like(query), torch.empty_like(query))
    scale = 1 / math.sqrt(query.shape[-1])
    for span, place in _spans(cu_seqlens, query.shape[1]):
        q, k, v, of_row = (_heads(each, span) for each in (query, key, value, gradient))
        shape = (q.shape[0], q.shape[1], q.shape[1])
        probabilities = used = all_probabilities[place].view(shape)
        keep = all_keep[place].view(shape) if p else None
        of_probabilities = torch.bmm(of_row, v.transpose(1, 2))
        if keep is not None:
            used = drop(probabilities, keep, p)
            drop_in_place(of_probabilities, keep, p)
        of_value = torch.bmm(used.transpose(1, 2), of_row)
        of_scores = torch.ops.aten._softmax_backward_data(
            of_probabilities, probabilities, -1, probabilities.dtype
        )
        of_query = _product(of_scores, k, scale)
        of_key = _product(of_scores.transpose(1, 2), q, scale)
        for result, part in zip(results, (of_query, of_key, of_value), strict=True):
            _heads(result, span).copy_(part)
    return results


@_row_attention_backward.register_fake
def _(
    gradient: torch.Tensor, query: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shape = query.shape
    return query.new_empty(shape), query.new_empty(shape), query.new_empty(shape)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    query, key, value, cu_seqlens, _, p = inputs
    _, probabilities, keep = output
    ctx.save_for_backward(query, key, value, cu_seqlens, probabilities, keep)
    ctx.p = p
    ctx.set_materialize_grads(False)  # no gradients of zeros for what is kept
    ctx.mark_non_differentiable(probabilities, keep)


def _backward(ctx: Any, gradient: torch.Tensor | None, *_: Any) -> tuple[torch.Tensor | None, ...]:
    if gradient is None:
        return (None,) * 6
    saved = ctx.saved_tensors
    return (*_row_attention_backward(gradient.contiguous(), *saved, ctx.p), None, None, None)


_row_attention.register_autograd(_backward, setup_context=_keep_for_backward)


def _spans(cu_seqlens: torch.Tensor, num_heads: int) -> Iterator[tuple[slice, slice]]:
    """Each row as a slice of the tokens, and of the probabilities; empty ones are left out."""
    place = 0
    for start, end in pairwise(cu_seqlens.tolist()):
        size = num_heads * (end - start) ** 2
        if size:
            yield slice(start, end), slice(place, place + size)
        place += size


def _heads(tensor: torch.Tensor, span: slice) -> torch.Tensor:
    """[T, N, D] to the row's [N, L, D], a view."""
    return tensor[span].transpose(0, 1)


def _product(a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    """scale * a @ b of N matrices, in one pass."""
    return torch.baddbmm(a.new_empty(1), a, b, beta=0, alpha=scale)
