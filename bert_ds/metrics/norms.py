"""Columns of LAMB's norms: a summary of the trust ratios, and norms by layer on request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

NUM_FURTHEST = 10
_LAYER = re.compile(r"(.*\.layer\.\d+)\.")

Ratios = np.ndarray[Any, np.dtype[np.float64]]


class ParameterNorms(Protocol):
    """One update's norms by parameter, float64 [P] on the device, as LAMB measures them."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters, in the order of the norms."""

    @property
    def is_exempt(self) -> tuple[bool, ...]:
        """Where the trust ratio is 1 by definition and carries no information."""

    @property
    def update_norms(self) -> torch.Tensor:
        """Norms of the update directions u, before trust ratio and learning rate."""

    @property
    def grad_norms(self) -> torch.Tensor:
        """Norms of the clipped gradients."""

    @property
    def trust_ratios(self) -> torch.Tensor:
        """Trust ratios r."""


def norm_columns(
    norms: Sequence[ParameterNorms | None],
    learning_rates: Sequence[float],
    *,
    by_layer: bool,
) -> list[dict[str, Any]]:
    """Return the columns that norms add to the rows of some updates, with one read of the device.

    Args:
        norms: the norms of each update; None where it was skipped.
        learning_rates: the learning rate of each update.
        by_layer: whether to add `grad_norm_by_layer` and `update_norm_by_layer`.

    Returns:
        For each update `trust_ratio_min`, `_median` and `_max` over the parameters that are not
        exempt, None where there are none. The last update with norms also has
        `trust_ratios_furthest`, the ten furthest (as a factor) from the median, and all
        `trust_ratios`. By layer: norms of the clipped gradient, and of the step lr * r * u.
    """
    known = [(index, each) for index, each in enumerate(norms) if each is not None]
    columns = [_ratio_columns(np.zeros(0)) for _ in norms]
    if not known:
        return columns
    wanted = [
        torch.stack([n.trust_ratios, n.update_norms, n.grad_norms]) if by_layer else n.trust_ratios
        for _, n in known
    ]
    values = torch.stack(wanted).cpu().numpy()
    for (index, each), found in zip(known, values, strict=True):
        ratios = found[0] if by_layer else found
        has_own = ~np.array(each.is_exempt)
        columns[index] = _ratio_columns(ratios[has_own])
        if by_layer:
            moved = learning_rates[index] * ratios * found[1]
            columns[index]["grad_norm_by_layer"] = norms_by_layer(each.names, found[2])
            columns[index]["update_norm_by_layer"] = norms_by_layer(each.names, moved)
    index, last = known[-1]
    own = {
        name: float(ratio)
        for name, ratio, is_exempt in zip(last.names, ratios, last.is_exempt, strict=True)
        if not is_exempt
    }
    columns[index]["trust_ratios_furthest"] = furthest_from_median(own)
    columns[index]["trust_ratios"] = list(own.values())
    return columns


def furthest_from_median(ratios: Mapping[str, float]) -> dict[str, float]:
    """Return the ten ratios that differ from the median by the largest factor, furthest first."""
    if not ratios:
        return {}
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.array(list(ratios.values()))
        distances = np.abs(np.log(values / np.median(values)))
    distances[np.isnan(distances)] = np.inf
    order = np.argsort(-distances, kind="stable")[:NUM_FURTHEST]
    names = list(ratios)
    return {names[place]: ratios[names[place]] for place in order}


def norms_by_layer(names: Sequence[str], norms: Ratios) -> dict[str, float]:
    """Return the norm of all parameters of each layer together, in the model's order."""
    squares: dict[str, float] = {}
    for name, norm in zip(names, norms.tolist(), strict=True):
        layer = layer_of(name)
        squares[layer] = squares.get(layer, 0.0) + norm * norm
    return {layer: square**0.5 for layer, square in squares.items()}


def layer_of(name: str) -> str:
    """Return a parameter's layer; outside the layers, the first two parts of its name.

    `bert.encoder.layer.3.output.dense.weight` gives `bert.encoder.layer.3`.
    """
    found = _LAYER.match(name)
    return found[1] if found else ".".join(name.split(".")[:2])


def _ratio_columns(ratios: Ratios) -> dict[str, Any]:
    has_any = len(ratios) > 0
    return {
        "trust_ratio_min": float(ratios.min()) if has_any else None,
        "trust_ratio_median": float(np.median(ratios)) if has_any else None,
        "trust_ratio_max": float(ratios.max()) if has_any else None,
    }
