"""The fused kernel for GPUs, in Triton, over a table of blocks.

A block is up to BLOCK consecutive elements of one fragment; a program computes one block. Its
sums of squares are added up by a second kernel, a fragment a program, in float64 and in a fixed
order, so that a step repeats bit for bit. Tables lie on the device and are made once; only the
addresses of gradients can change from step to step.

What makes this hard: kernels read and write through raw addresses, which Triton cannot check, and
run while the host is already at later work. Four things must not change:

- The host never waits: nothing is read from the device, and tables are sent from pinned memory.
- A table is used again only for tensors at the same addresses: its key holds all of them, and those
  of gradients are compared in every step, since an engine may allocate them again.
- Every load and store is masked by the fragment's length: what lies behind it belongs to another
  parameter, or is padding.
- Square roots and divisions are the correctly rounded ones (`sqrt_rn`, `div_rn`): the fast ones
  that Triton takes by itself would not agree with the other kernels.

With TRITON_INTERPRET=1 set before this module is imported, the same code runs on CPUs, slowly.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from bert_ds.optim.kernels.base import ApplyUpdate, StepInputs
from bert_ds.optim.lamb_rule import LambRule
from bert_ds.optim.rule import ELEMENTS, GRADIENT

BLOCK = 4096
"""Elements of a block."""
TABLES_KEPT = 64
"""Sets of tensors whose tables are kept at a time."""
PARTIALS = 256
"""Partial sums that the second kernel loads at a time."""


@triton.jit
def _direction(w, m, v, correction1, correction2, eps, weight_decay):
    """Return the update direction u of a block."""
    root = tl.sqrt_rn(tl.div_rn(v, correction2))
    return tl.div_rn(tl.div_rn(m, correction1), root + eps) + weight_decay * w


@triton.jit
def _address(table, fragment):
    """Return the start of a fragment, out of a table of addresses."""
    return tl.load(table + fragment).to(tl.pointer_type(tl.float32))


@triton.jit
def _advance(
    block_fragment, block_start, weights, gradients, exp_avgs, exp_avg_sqs, numels, divisor,
    partial, num_blocks, beta1, beta2, beta3, beta2_rest, correction1, correction2, eps,
    weight_decay, HAS_DIVISOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Advance a block's moments; store its sums of squares of w, u, g in partial [3, blocks]."""
    block = tl.program_id(0)
    fragment = tl.load(block_fragment + block)
    offsets = tl.load(block_start + block) + tl.arange(0, BLOCK)
    mask = offsets < tl.load(numels + fragment)
    m_places = _address(exp_avgs, fragment) + offsets
    v_places = _address(exp_avg_sqs, fragment) + offsets
    w = tl.load(_address(weights, fragment) + offsets, mask=mask, other=0.0)
    g = tl.load(_address(gradients, fragment) + offsets, mask=mask, other=0.0)
    if HAS_DIVISOR:
        g = tl.div_rn(g, tl.load(divisor).to(tl.float32))
    m = beta1 * tl.load(m_places, mask=mask, other=0.0) + beta3 * g
    v = beta2 * tl.load(v_places, mask=mask, other=0.0) + beta2_rest * g * g
    tl.store(m_places, m, mask=mask)
    tl.store(v_places, v, mask=mask)
    u = _direction(w, m, v, correction1, correction2, eps, weight_decay)
    u = tl.where(mask, u, 0.0)  # with eps = 0 it is 0 / 0 beyond the end
    tl.store(partial + block, tl.sum(w * w, axis=0))
    tl.store(partial + num_blocks + block, tl.sum(u * u, axis=0))
    tl.store(partial + 2 * num_blocks + block, tl.sum(g * g, axis=0))


@triton.jit
def _sum_partials(partial, first_block, squares, num_blocks, num_fragments, PARTIALS: tl.constexpr):
    """Add up the partial sums of one fragment (axis 0) and one of w, u, g (axis 1)."""
    fragment, row = tl.program_id(0), tl.program_id(1)
    total = tl.zeros((PARTIALS,), dtype=tl.float64)
    end = tl.load(first_block + fragment + 1)
    for begin in range(tl.load(first_block + fragment), end, PARTIALS):
        places = begin + tl.arange(0, PARTIALS)
        loaded = tl.load(partial + row * num_blocks + places, mask=places < end, other=0.0)
        total += loaded.to(tl.float64)
    tl.store(squares + row * num_fragments + fragment, tl.sum(total, axis=0))


@triton.jit
def _apply(
    block_fragment, block_start, weights, exp_avgs, exp_avg_sqs, numels, parameters, multipliers,
    correction1, correction2, eps, weight_decay, BLOCK: tl.constexpr,
):  # fmt: skip
    """Subtract multiplier u from w of a block; to compute u again costs less than to store it."""
    block = tl.program_id(0)
    fragment = tl.load(block_fragment + block)
    offsets = tl.load(block_start + block) + tl.arange(0, BLOCK)
    mask = offsets < tl.load(numels + fragment)
    w_places = _address(weights, fragment) + offsets
    w = tl.load(w_places, mask=mask, other=0.0)
    m = tl.load(_address(exp_avgs, fragment) + offsets, mask=mask, other=0.0)
    v = tl.load(_address(exp_avg_sqs, fragment) + offsets, mask=mask, other=0.0)
    u = _direction(w, m, v, correction1, correction2, eps, weight_decay)
    multiplier = tl.load(multipliers + tl.load(parameters + fragment)).to(tl.float32)
    tl.store(w_places, w - multiplier * u, mask=mask)


class _Tables(NamedTuple):
    """The tables on the device for one set of tensors, of F fragments and B blocks."""

    block_fragment: torch.Tensor
    """Int32 [B], each block's fragment."""
    block_start: torch.Tensor
    """Int64 [B], each block's first element in its fragment."""
    first_block: torch.Tensor
    """Int64 [F + 1], each fragment's first block, and B at the end."""
    numels: torch.Tensor
    """Int64 [F], elements of each fragment."""
    parameters: torch.Tensor
    """Int64 [F], number of each fragment's parameter."""
    weights: torch.Tensor
    """Int64 [F], addresses of w."""
    exp_avgs: torch.Tensor
    """Int64 [F], addresses of m."""
    exp_avg_sqs: torch.Tensor
    """Int64 [F], addresses of v."""


class TritonKernel:
    """LAMB in float32 on GPUs; nothing is read from the device, so the host never waits."""

    name = "triton"

    def __init__(self) -> None:
        self._tables: dict[tuple[object, ...], _Tables] = {}
        self._gradients: dict[tuple[object, ...], tuple[tuple[int, ...], torch.Tensor]] = {}

    def begin(self, inputs: StepInputs, sums: torch.Tensor) -> ApplyUpdate:
        """Advance the moments and add to the sums, see `Kernel.begin`."""
        device, c = inputs.tensors[0].weight.device, inputs.rule
        assert isinstance(c, LambRule)
        key = tuple(
            (t.weight.data_ptr(), t.exp_avg.data_ptr(), t.exp_avg_sq.data_ptr(), t.fragments)
            for t in inputs.tensors
        )
        if key not in self._tables:
            if len(self._tables) >= TABLES_KEPT:  # the tensors move from step to step
                self._tables.clear()
                self._gradients.clear()
            self._tables[key] = _make_tables(inputs, device)
        tables = self._tables[key]
        num_blocks, num_fragments = len(tables.block_fragment), len(tables.numels)
        if not num_blocks:
            return lambda multipliers: None
        corrections = (c.correction1, c.correction2, c.eps, c.weight_decay)
        partial = torch.empty(3, num_blocks, dtype=torch.float32, device=device)
        squares = torch.empty(3, num_fragments, dtype=torch.float64, device=device)
        with _on(device):
            _advance[(num_blocks,)](
                tables.block_fragment, tables.block_start, tables.weights,
                self._gradient_table(key, inputs, device), tables.exp_avgs, tables.exp_avg_sqs,
                tables.numels, sums if inputs.divisor is None else inputs.divisor, partial,
                num_blocks, c.beta1, c.beta2, c.beta3, 1.0 - c.beta2, *corrections,
                HAS_DIVISOR=inputs.divisor is not None, BLOCK=BLOCK,
            )  # fmt: skip
            _sum_partials[(num_fragments, 3)](
                partial, tables.first_block, squares, num_blocks, num_fragments, PARTIALS=PARTIALS
            )
        sums[: GRADIENT + 1].index_add_(1, tables.parameters, squares)
        sums[ELEMENTS].index_add_(0, tables.parameters, tables.numels.double())

        def apply_update(multipliers: torch.Tensor) -> None:
            with _on(device):
                _apply[(num_blocks,)](
                    tables.block_fragment, tables.block_start, tables.weights, tables.exp_avgs,
                    tables.exp_avg_sqs, tables.numels, tables.parameters, multipliers, *corrections,
                    BLOCK=BLOCK,
                )  # fmt: skip

        return apply_update

    def _gradient_table(
        self, key: tuple[object, ...], inputs: StepInputs, device: torch.device
    ) -> torch.Tensor:
        """Return the gradients' addresses, int64 [F]; they are sent again only where one moved."""
        places = tuple(flat.gradient.data_ptr() for flat in inputs.tensors)
        known = self._gradients.get(key)
        if known is None or known[0] != places:
            known = places, _send(torch.tensor(_addresses(inputs, "gradient")), device)
            self._gradients[key] = known
        return known[1]


def _make_tables(inputs: StepInputs, device: torch.device) -> _Tables:
    fragments = [fragment for flat in inputs.tensors for fragment in flat.fragments]
    numels = [fragment.numel for fragment in fragments]
    counts = torch.tensor([-(-numel // BLOCK) for numel in numels], dtype=torch.int64)
    block_fragment = torch.repeat_interleave(torch.arange(len(fragments)), counts)
    first_block = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    place_in_fragment = torch.arange(len(block_fragment)) - first_block[block_fragment]
    columns = (
        block_fragment.to(torch.int32),
        place_in_fragment * BLOCK,
        first_block,
        torch.tensor(numels, dtype=torch.int64),
        torch.tensor([fragment.parameter for fragment in fragments], dtype=torch.int64),
        *(
            torch.tensor(_addresses(inputs, what), dtype=torch.int64)
            for what in ("weight", "exp_avg", "exp_avg_sq")
        ),
    )
    return _Tables(*(_send(column, device) for column in columns))


def _send(column: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a copy on the device, which the host does not wait for."""
    if device.type != "cuda":
        return column.to(device)
    return column.pin_memory().to(device, non_blocking=True)


def _addresses(inputs: StepInputs, what: str) -> list[int]:
    """Return the address of each fragment's first float32 for one of w, g, m, v."""
    return [
        getattr(flat, what).data_ptr() + 4 * fragment.flat_start
        for flat in inputs.tensors
        for fragment in flat.fragments
    ]


def _on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Make the tensors' GPU the current one, which Triton launches on."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
