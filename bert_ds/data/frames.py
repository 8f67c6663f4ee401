"""What a reader process tells the training process, and its way through a pipe.

A frame is a pickled object whose arrays are left out and follow as they lie in memory (pickle's
protocol 5), so that writer and reader copy them once each. A pipe moved 4 GB/s between two cores
where a copy into shared memory moved 12; a row of 128 tokens is 280 bytes, so shared memory would
save some 50 ns a row. A pipe, in turn, leaves nothing behind whoever is killed.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from io import BufferedReader, BufferedWriter

import numpy as np

from bert_ds.data.rows import StreamSpec, UpdateRows

_ALIGNMENT = 8  # bytes; compiled code is made anew for arrays that lie askew
_HEAD = struct.Struct("<QQ")  # bytes of the pickle, number of arrays


@dataclass(frozen=True)
class ReadingTask:
    """What a reader process is to do.

    Attributes:
        spec: the stream.
        position: stream position of its first update.
        every: of the updates from there on it makes every `every`-th.
    """

    spec: StreamSpec
    position: int
    every: int


@dataclass(frozen=True)
class Frame:
    """One update, or why there is none.

    Attributes:
        update: the rows.
        error: message of a `DataError` that took their place; the process has ended.
        warnings: what was logged meanwhile.
    """

    update: UpdateRows | None = None
    error: str | None = None
    warnings: tuple[str, ...] = ()


def write_frame(file: BufferedWriter, frame: Frame) -> None:
    """Write a frame; it has reached the pipe when this returns."""
    arrays: list[pickle.PickleBuffer] = []
    text = pickle.dumps(frame, protocol=5, buffer_callback=arrays.append)
    views = [array.raw() for array in arrays]
    sizes = struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views))
    file.write(_HEAD.pack(len(text), len(views)) + sizes + text)
    for view in views:
        file.write(view)
        file.write(bytes(-view.nbytes % _ALIGNMENT))
    file.flush()


def read_frame(file: BufferedReader) -> Frame | None:
    """The next frame, or None where the writer has ended."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    text_size, num_arrays = _HEAD.unpack(head)
    sizes = struct.unpack(f"<{num_arrays}Q", file.read(8 * num_arrays))
    text = file.read(text_size)
    padded = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
    memory = np.empty(sum(padded), np.uint8).data
    if file.readinto(memory) < len(memory):
        return None
    starts = [sum(padded[:index]) for index in range(num_arrays)]
    buffers = [memory[s : s + size] for s, size in zip(starts, sizes, strict=True)]
    frame: Frame = pickle.loads(text, buffers=buffers)
    return frame
