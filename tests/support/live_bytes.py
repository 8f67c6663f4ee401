"""How many bytes of tensors are alive, and how many were at most: memory without an allocator."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """While it is entered, counts the storages that operations return, until they are gone.

    What a kernel takes and gives back within one operation is not seen.

    Attributes:
        now: bytes that are alive.
        peak: the most since the last `reset_peak`.
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        """Args: known: tensors that are there already and do not count."""
        super().__init__()
        self.now = self.peak = 0
        self._kept = [tensor.untyped_storage() for tensor in known]
        self._known = {storage._cdata for storage in self._kept}

    def __torch_dispatch__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and not leaf.is_meta:
                self._count(leaf.untyped_storage())
        self.peak = max(self.peak, self.now)
        return result

    def reset_peak(self) -> None:
        """Begin a new stretch."""
        self.peak = self.now

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.now += size
            weakref.finalize(storage, self._is_gone, key, size)

    def _is_gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size
