"""The data contract: what a block of pretraining rows holds, and its bytes.

A block is a stored (never deflated) `.npz` of one-dimensional unsigned arrays, rows end to end. The
bytes depend on the arrays alone: zip timestamps are fixed. `numpy.load` reads a block too;
`decode_block` is the fast way and checks the checksum of every field. What the rows mean together
(positions in range, no special piece masked) is checked by `data_prep.inspect.verify`.

Legend: n rows, T tokens of all rows, P masked positions of all rows.
"""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from data_prep.contract.errors import DataError

FORMAT_VERSION = 3
"""Version of the data contract; a reader refuses every other."""

PAIR_LABEL_NAMES = ("next_sentence_label", "sentence_order_label")
"""Names the label of a row may have, by the way pairs were made."""

_FIELDS = (
    "tokens",
    "length",
    "segment_a_length",
    "num_predictions",
    "masked_lm_positions",
    "masked_lm_ids",
)
ENDING_BYTES = 1 << 10
"""The end of a block that holds its whole zip directory, of some 470 bytes."""
_FIRST_DAY = 33  # 1980-01-01, the earliest date a zip can hold
_UNIX = 3 << 8  # where the block was "made", wherever it is written
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_DIRECTORY_ENTRY = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_SHAPE_DIGITS = 21  # NumPy leaves room for a shape of so many to grow
_NPY_HEADER = re.compile(
    rb"\{'descr': '([<|]u[124])', 'fortran_order': False, 'shape': \((\d+),\), \} *\n"
)

UnsignedArray = npt.NDArray[np.unsignedinteger[Any]]
IntArray = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Block:
    """Some rows of pretraining data, masks applied, without padding."""

    tokens: UnsignedArray
    """uint16 (uint32 above 65,536 pieces) [T], [CLS] and [SEP] included, rows end to end."""
    length: UnsignedArray
    """uint16 [n], tokens of the row."""
    segment_a_length: UnsignedArray
    """uint16 [n], tokens of segment A with its [CLS] and [SEP]."""
    num_predictions: UnsignedArray
    """uint8 or uint16 [n], masked positions of the row."""
    masked_lm_positions: UnsignedArray
    """uint8 (uint16 above 256 tokens a row) [P], positions in the row."""
    masked_lm_ids: UnsignedArray
    """As `tokens` [P], the pieces that stood there."""
    pair_label: UnsignedArray | None
    """uint8 [n], 0 true next (or in order), 1 random (or swapped); None for rows of one segment."""
    pair_label_name: str | None
    """The name of `pair_label` in the file, one of `PAIR_LABEL_NAMES`, or None."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.length)


def concatenate_blocks(blocks: Iterable[Block]) -> Block:
    """Return the rows of several blocks, one after the other; at least one block."""
    parts = list(blocks)
    if len(parts) == 1:
        return parts[0]
    fields = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _FIELDS}
    labels = [part.pair_label for part in parts if part.pair_label is not None]
    label = np.concatenate(labels) if labels else None
    return Block(**fields, pair_label=label, pair_label_name=parts[0].pair_label_name)


def select_rows(block: Block, rows: IntArray) -> Block:
    """Return the given rows of a block, in the given order.

    Args:
        block: the rows to choose from.
        rows: int64 [m], row numbers; rows may be left out and may repeat.
    """
    length = block.length.astype(np.int64)
    predictions = block.num_predictions.astype(np.int64)
    tokens = spread((np.cumsum(length) - length)[rows], length[rows])
    masked = spread((np.cumsum(predictions) - predictions)[rows], predictions[rows])
    return Block(
        tokens=block.tokens[tokens],
        length=block.length[rows],
        segment_a_length=block.segment_a_length[rows],
        num_predictions=block.num_predictions[rows],
        masked_lm_positions=block.masked_lm_positions[masked],
        masked_lm_ids=block.masked_lm_ids[masked],
        pair_label=None if block.pair_label is None else block.pair_label[rows],
        pair_label_name=block.pair_label_name,
    )


def spread(starts: IntArray, sizes: IntArray) -> IntArray:
    """Return the indices start, start + 1, ... of every span, one span after the other.

    Args:
        starts: int64 [m], first index of each span.
        sizes: int64 [m], indices of each span.

    Returns:
        int64 [sum of sizes].
    """
    offsets = np.cumsum(sizes) - sizes
    return np.repeat(starts - offsets, sizes) + np.arange(int(sizes.sum()))


def token_dtype(vocabulary_size: int) -> np.dtype[Any]:
    """Return the dtype of piece ids: uint16 up to 65,536 pieces, else uint32."""
    return np.dtype(np.uint16 if vocabulary_size <= 1 << 16 else np.uint32)


def position_dtype(sequence_length: int) -> np.dtype[Any]:
    """Return the dtype of positions in a row: uint8 up to 256 tokens, else uint16."""
    return np.dtype(np.uint8 if sequence_length <= 1 << 8 else np.uint16)


def count_dtype(max_predictions_per_seq: int) -> np.dtype[Any]:
    """Return the dtype of `num_predictions`: uint8 up to 255 predictions, else uint16."""
    return np.dtype(np.uint8 if max_predictions_per_seq < 1 << 8 else np.uint16)


def encode_block(block: Block) -> bytes:
    """Return the bytes of `block`; equal arrays give equal bytes.

    Args:
        block: rows with one-dimensional little-endian arrays.

    Returns:
        A stored `.npz` file, as `zipfile` would write it; it takes a fifth of the time.
    """
    fields = {name: getattr(block, name) for name in _FIELDS}
    if block.pair_label is not None and block.pair_label_name is not None:
        fields[block.pair_label_name] = block.pair_label
    parts: list[bytes] = []
    directory: list[bytes] = []
    offset = 0
    for name, array in fields.items():
        file, payload = f"{name}.npy".encode("ascii"), _npy_bytes(array)
        about = (20, 0, zipfile.ZIP_STORED, 0, _FIRST_DAY)
        sizes = (zlib.crc32(payload), len(payload), len(payload), len(file), 0)
        parts += [_LOCAL_HEADER.pack(b"PK\3\4", *about, *sizes), file, payload]
        rest = (0, 0, 0, 0o644 << 16, offset)
        directory += [_DIRECTORY_ENTRY.pack(b"PK\1\2", _UNIX | 20, *about, *sizes, *rest), file]
        offset += _LOCAL_HEADER.size + len(file) + len(payload)
    size, count = sum(map(len, directory)), len(fields)
    end = _END.pack(b"PK\5\6", 0, 0, count, count, size, offset, 0)
    return b"".join([*parts, *directory, end])


def _npy_bytes(array: UnsignedArray) -> bytes:
    """Return `array` as an `.npy` file of version 1.0, as NumPy writes it."""
    shape = str(len(array))
    header = f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': ({shape},), }}"
    header += " " * (_SHAPE_DIGITS - len(shape))
    size = -(-(10 + len(header) + 1) // 64) * 64 - 10
    content = header.ljust(size - 1).encode("ascii") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(content)) + content + array.tobytes()


def decode_block(data: bytes | memoryview, where: str) -> Block:
    """Read what `encode_block` wrote; the arrays are copies of their own.

    Args:
        data: the whole `.npz` file.
        where: shard and block, for the message of an error.

    Returns:
        The rows.

    Raises:
        DataError: the bytes are no block, or a field is missing, broken or of a wrong size.
    """
    try:
        fields = _read_fields(memoryview(data))
    except (struct.error, ValueError) as err:
        raise DataError(
            f"{where}: not a readable block ({err}); the shard is damaged, prepare it again."
        ) from err
    return _checked_block(fields, where)


def block_checksum(data: bytes | memoryview) -> int:
    """Return a checksum for the content of a block: crc32 over the checksums of its fields.

    The fields themselves are not read; `decode_block` holds them against these checksums.

    Args:
        data: the whole `.npz` file.

    Raises:
        ValueError: the bytes are no `.npz` of stored members.
    """
    checksums, offset = b"", 0
    while data[offset : offset + 4] == b"PK\x03\x04" and len(data) >= offset + _LOCAL_HEADER.size:
        header = _LOCAL_HEADER.unpack_from(data, offset)
        checksums += struct.pack("<I", header[6])
        offset += _LOCAL_HEADER.size + sum((header[7], *header[9:11]))
    if not checksums:
        raise ValueError("no zip member at its start")
    return zlib.crc32(checksums)


def checksum_of_ending(ending: bytes) -> int:
    """Return the `block_checksum` of a block, from its last `ENDING_BYTES` alone.

    Raises:
        ValueError: the bytes are not the end of an `.npz` as `encode_block` writes it.
    """
    end = ending[-_END.size :]
    if len(end) < _END.size or end[:4] != b"PK\5\6":
        raise ValueError("no zip directory at its end")
    _, _, _, _, count, size, *_ = _END.unpack(end)
    directory = ending[: -_END.size][-size:]
    checksums, offset = b"", 0
    for _ in range(count):
        entry = directory[offset : offset + _DIRECTORY_ENTRY.size]
        if len(entry) < _DIRECTORY_ENTRY.size or entry[:4] != b"PK\1\2":
            raise ValueError("a broken zip directory at its end")
        values = _DIRECTORY_ENTRY.unpack(entry)
        checksums += struct.pack("<I", values[7])
        offset += _DIRECTORY_ENTRY.size + sum(values[10:13])
    return zlib.crc32(checksums)


def _read_fields(data: memoryview) -> dict[str, UnsignedArray]:
    """Return the arrays of an `.npz` whose members are stored; raise ValueError on any damage."""
    fields: dict[str, UnsignedArray] = {}
    offset = 0
    while bytes(data[offset : offset + 4]) == b"PK\x03\x04":
        header = _LOCAL_HEADER.unpack_from(data, offset)
        method, crc, size, name_size, extra_size = header[3], *header[6:8], *header[9:11]
        start = offset + _LOCAL_HEADER.size + name_size + extra_size
        payload = data[start : start + size]
        name = bytes(data[offset + _LOCAL_HEADER.size :][:name_size]).decode("ascii")
        if method != zipfile.ZIP_STORED:
            raise ValueError(f"field {name} is compressed")
        if len(payload) != size or zlib.crc32(payload) != crc:
            raise ValueError(f"field {name} is cut off or changed")
        fields[name.removesuffix(".npy")] = _read_npy(payload, name)
        offset = start + size
    if not fields:
        raise ValueError("no zip member at its start")
    return fields


def _read_npy(payload: memoryview, name: str) -> UnsignedArray:
    """Read the `.npy` of a one-dimensional unsigned array; raise ValueError on anything else."""
    if bytes(payload[:8]) != b"\x93NUMPY\x01\x00":
        raise ValueError(f"field {name} is not an npy file of version 1.0")
    (header_size,) = struct.unpack_from("<H", payload, 8)
    match = _NPY_HEADER.fullmatch(payload[10 : 10 + header_size])
    if match is None:
        raise ValueError(f"field {name} is not a one-dimensional unsigned array")
    dtype = np.dtype(match[1].decode())
    if len(payload) - 10 - header_size != int(match[2]) * dtype.itemsize:
        raise ValueError(f"field {name} does not have {int(match[2])} elements")
    return np.frombuffer(payload, dtype, offset=10 + header_size).copy()


def _checked_block(fields: dict[str, UnsignedArray], where: str) -> Block:
    """Return the block of `fields`, once names and sizes agree."""
    labels = [name for name in PAIR_LABEL_NAMES if name in fields]
    expected = {*_FIELDS, *labels}
    if len(labels) > 1 or set(fields) != expected:
        raise DataError(
            f"{where}: fields are {sorted(fields)}; a block holds {sorted(_FIELDS)} and at most "
            f"one of {list(PAIR_LABEL_NAMES)}."
        )
    block = Block(
        tokens=fields["tokens"],
        length=fields["length"],
        segment_a_length=fields["segment_a_length"],
        num_predictions=fields["num_predictions"],
        masked_lm_positions=fields["masked_lm_positions"],
        masked_lm_ids=fields["masked_lm_ids"],
        pair_label=fields[labels[0]] if labels else None,
        pair_label_name=labels[0] if labels else None,
    )
    sizes = {
        "segment_a_length": len(block),
        "num_predictions": len(block),
        **{label: len(block) for label in labels},
        "tokens": int(block.length.sum(dtype=np.int64)),
        "masked_lm_positions": int(block.num_predictions.sum(dtype=np.int64)),
        "masked_lm_ids": int(block.num_predictions.sum(dtype=np.int64)),
    }
    for name, size in sizes.items():
        if len(fields[name]) != size:
            raise DataError(
                f"{where}: field {name} has {len(fields[name])} elements, its rows need {size}."
            )
    return block
