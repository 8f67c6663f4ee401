"""Attention within rows that lie end to end, on CPUs: a row at a time, with its own backward pass.

A row's scores stay in the cache, and rows of one length gain nothing from being computed together.
The operations are registered with torch, so that compiled layers and recomputation can call them.

What makes this hard: rows differ in length, so the matrices of probabilities do as well, and they
must outlive the forward pass. They lie end to end in one flat buffer, at the places that
`row_spans` gives; the forward and the backward pass must walk the rows in the same order and skip
the same empty ones, or a row's gradient is computed from another row's probabilities. The shape of
the buffer must be known before the lengths are (`register_fake`, for compiled layers): it is sized
by max_seqlen, and its end stays untouched, so the system gives it no memory. Probabilities are kept
before dropout, since the gradient of softmax needs them; those after it are computed again from
`keep`.

Legend: T tokens of all rows, H hidden_size, N heads, D head_dim = H / N, L tokens of one row.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from bert_ds.model.cpu.dropout import draw_and_drop_into, drop, drop_in_place
from bert_ds.model.row_bounds import heads_of_row, row_spans

_RANDOM = (torch.Tag.nondeterministic_seeded,)


@torch.library.custom_op("bert_ds::row_attention", mutates_args=(), tags=_RANDOM)
def row_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    p: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute softmax(q k^T / sqrt(D)) v within each row, for every head.

    The backward pass needs the probabilities, and a byte each for dropout; autograd on
    `plain_attend` would keep the probabilities before and after dropout.

    Args:
        query: [T, N, D].
        key: [T, N, D].
        value: [T, N, D].
        cu_seqlens: int32 [rows + 1], where each row begins, and T.
        max_seqlen: tokens of the longest row.
        p: dropout of the probabilities.

    Returns:
        [T, N, D]; probabilities [N * T * max_seqlen], of which those of the rows take the
        beginning and the rest is never touched; bool [the same] or [0], which of them stay.
    """
    num_tokens, num_heads, head_dim = query.shape
    result = torch.empty(query.shape, dtype=query.dtype)
    size = num_heads * num_tokens * max_seqlen
    all_probabilities = torch.empty(size, dtype=query.dtype)
    all_keep = torch.empty(size if p else 0, dtype=torch.bool)
    for span, place in row_spans(cu_seqlens, num_heads):
        q, k, v = (heads_of_row(each, span) for each in (query, key, value))
        scores = _product(q, k.transpose(1, 2), 1 / math.sqrt(head_dim))
        probabilities = all_probabilities[place].view(scores.shape)
        torch.softmax(scores, dim=-1, out=probabilities)
        if p:
            draw_and_drop_into(probabilities, p, scores, all_keep[place].view(scores.shape))
        heads_of_row(result, span).copy_(torch.bmm(scores if p else probabilities, v))
    return result, all_probabilities, all_keep


@row_attention.register_fake
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
    """Return the gradients of query, key and value, each [T, N, D]."""
    results = (torch.empty_like(query), torch.empty_like(query), torch.empty_like(query))
    scale = 1 / math.sqrt(query.shape[-1])
    for span, place in row_spans(cu_seqlens, query.shape[1]):
        q, k, v, of_row = (heads_of_row(each, span) for each in (query, key, value, gradient))
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
            heads_of_row(result, span).copy_(part)
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


row_attention.register_autograd(_backward, setup_context=_keep_for_backward)


def _product(a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    """Return scale * a @ b of N matrices, in one pass."""
    return torch.baddbmm(a.new_empty(1), a, b, beta=0, alpha=scale)
