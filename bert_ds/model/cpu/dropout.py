"""Dropout on CPUs in one pass, with random numbers that depend on torch's seed alone.

torch draws a number an element from one thread on CPUs, which takes a tenth of a training step of
BERT-base. Here 64 random bits serve four elements, and mask and product are one pass.

The probability is rounded to a multiple of 2^-16 (0.1 becomes 0.100006), and kept elements are
divided by what is kept after rounding: the expectation is exact.

What makes this hard is reproducibility. Recomputation draws every mask a second time, resumed runs
repeat those of the run they continue, and both must get the same bits with any number of threads.
Three things must therefore not change:

- The numbers are counter-based: element i takes bits 16 (i mod 4) to 16 (i mod 4) + 15 of the mix
  of the seed and i / 4 (SplitMix64, Steele et al. 2014, doi:10.1145/2660193.2660195). They do not
  depend on the order in which elements are visited, and no state is carried from one to the next.
- Each call takes one number from torch's default generator, the seed. `torch.utils.checkpoint`
  restores that generator before it recomputes, so the second call draws the same mask. A call more
  or less shifts the masks of all later ones.
- The order of elements is the one in memory, so `x` must be contiguous.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from data_prep.contract.compiled import compiled

_STEPS = 1 << 16
"""Steps between probability 0 and 1."""
_FLOATS = (torch.float32, torch.float64)
"""Types that the compiled loops take; the others are multiplied by torch."""


def draw_and_drop_into(x: torch.Tensor, p: float, result: torch.Tensor, keep: torch.Tensor) -> None:
    """Draw which elements stay, scale those and set the others to zero, in one pass.

    Args:
        x: on the CPU, contiguous.
        p: probability of zero, in (0, 1).
        result: as x, overwritten.
        keep: bool of the same shape, overwritten: which elements stay.
    """
    seed = np.uint64(int(torch.randint(1 << 62, ())))
    dropped = round(p * _STEPS)
    if x.dtype in _FLOATS:
        source, target = _flat(x), _flat(result)
        _draw_and_drop(seed, dropped, source.dtype.type(_scale(p)), source, target, _flat(keep))
    else:  # NumPy knows no bfloat16
        _draw(seed, dropped, _flat(keep))
        torch.mul(x, keep, out=result).mul_(_scale(p))


def drop(x: torch.Tensor, keep: torch.Tensor, p: float) -> torch.Tensor:
    """Return `x` scaled where it is kept, else zero: the forward and the backward pass alike.

    Args:
        x: values or gradients on the CPU, contiguous.
        keep: bool, of the same shape.
        p: probability that `keep` was drawn with.
    """
    if x.dtype not in _FLOATS:
        return (x * keep).mul_(_scale(p))
    result = torch.empty_like(x)
    _drop(_flat(x).dtype.type(_scale(p)), _flat(x), _flat(keep), _flat(result))
    return result


def drop_in_place(x: torch.Tensor, keep: torch.Tensor, p: float) -> None:
    """Do what `drop` does, and overwrite `x`.

    Args:
        x: on the CPU, contiguous.
        keep: bool, of the same shape.
        p: probability that `keep` was drawn with.
    """
    if x.dtype in _FLOATS:
        _drop(_flat(x).dtype.type(_scale(p)), _flat(x), _flat(keep), _flat(x))
    else:
        x.mul_(keep).mul_(_scale(p))


def _scale(p: float) -> float:
    """Return the factor of kept elements."""
    return _STEPS / (_STEPS - round(p * _STEPS))


def _flat(x: torch.Tensor) -> npt.NDArray[Any]:
    """Return the elements as an array that shares their memory."""
    return x.detach().view(-1).numpy()


@torch.library.custom_op(
    "bert_ds::dropout", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def dropout(x: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result, and which elements were kept, for the backward pass."""
    x = x.contiguous()
    result, keep = torch.empty_like(x), torch.empty(x.shape, dtype=torch.bool)
    draw_and_drop_into(x, p, result, keep)
    return result, keep


@dropout.register_fake
def _(x: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape, dtype=torch.bool)


@torch.library.custom_op("bert_ds::dropout_backward", mutates_args=())
def dropout_backward(gradient: torch.Tensor, keep: torch.Tensor, p: float) -> torch.Tensor:
    """Return the gradient of the input.

    Args:
        gradient: gradient of the result.
        keep: bool, which elements were kept.
        p: probability that `keep` was drawn with.
    """
    return drop(gradient.contiguous(), keep, p)


@dropout_backward.register_fake
def _(gradient: torch.Tensor, keep: torch.Tensor, p: float) -> torch.Tensor:
    return gradient.new_empty(gradient.shape)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    ctx.p = inputs[1]
    ctx.set_materialize_grads(False)  # no gradient of zeros for `keep`
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, gradient: torch.Tensor | None, *_: Any) -> tuple[torch.Tensor | None, None]:
    if gradient is None:
        return None, None
    return dropout_backward(gradient, *ctx.saved_tensors, ctx.p), None


dropout.register_autograd(_backward, setup_context=_keep_for_backward)


@compiled
def _mixed(seed: np.uint64, number: int) -> np.uint64:
    """Return the `number`-th 64 random bits of a seed: SplitMix64's increment and finaliser."""
    mixed = seed + np.uint64(number) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@compiled
def _draw(seed: np.uint64, dropped: int, keep: npt.NDArray[np.bool_]) -> None:
    """Fill `keep` [n]: an element is dropped where its 16 bits are below `dropped`."""
    threshold = np.uint64(dropped)
    whole = len(keep) // 4
    for number in range(whole):
        bits = _mixed(seed, number)
        for part in range(4):
            field = (bits >> np.uint64(16 * part)) & np.uint64(0xFFFF)
            keep[4 * number + part] = field >= threshold
    bits = _mixed(seed, whole)
    for part in range(len(keep) - 4 * whole):
        field = (bits >> np.uint64(16 * part)) & np.uint64(0xFFFF)
        keep[4 * whole + part] = field >= threshold


@compiled
def _draw_and_drop(
    seed: np.uint64,
    dropped: int,
    scale: np.floating[Any],
    source: npt.NDArray[np.floating[Any]],
    target: npt.NDArray[np.floating[Any]],
    keep: npt.NDArray[np.bool_],
) -> None:
    """Fill `target` and `keep`, both [n] as `source`: `_draw` and `_drop` in one pass."""
    threshold, zero = np.uint64(dropped), scale - scale
    whole = len(keep) // 4
    for number in range(whole):
        bits = _mixed(seed, number)
        for part in range(4):
            place = 4 * number + part
            stays = (bits >> np.uint64(16 * part)) & np.uint64(0xFFFF) >= threshold
            keep[place] = stays
            target[place] = source[place] * scale if stays else zero
    bits = _mixed(seed, whole)
    for part in range(len(keep) - 4 * whole):
        place = 4 * whole + part
        stays = (bits >> np.uint64(16 * part)) & np.uint64(0xFFFF) >= threshold
        keep[place] = stays
        target[place] = source[place] * scale if stays else zero


@compiled
def _drop(
    scale: np.floating[Any],
    source: npt.NDArray[np.floating[Any]],
    keep: npt.NDArray[np.bool_],
    target: npt.NDArray[np.floating[Any]],
) -> None:
    """Fill `target` [n] with the kept elements of `source`, scaled, and zeros."""
    zero = scale - scale
    for place in range(len(source)):
        target[place] = source[place] * scale if keep[place] else zero
