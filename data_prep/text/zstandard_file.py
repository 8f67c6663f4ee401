"""Reading `.zst` files: frames one after the other, and an error where the last is cut off.

`zstandard`'s own stream reader takes a truncated file for a complete one.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from data_prep.contract.errors import UsageError

_CHUNK_BYTES = 1 << 10  # it may hold a hundred thousand times as much text


def open_zstandard(path: str) -> io.BufferedReader:
    """Return the decompressed bytes of `path`.

    Raises:
        UsageError: the package `zstandard` is not installed.
        OSError: the file cannot be opened; later, from reading, that it is damaged.
    """
    try:
        import zstandard  # an extra: only who has such files needs it
    except ImportError as err:
        raise UsageError(
            f"{path}: reading .zst needs the package zstandard; "
            "pip install zstandard, or decompress the file."
        ) from err
    return io.BufferedReader(_ZstandardFile(open(path, "rb"), zstandard))


class _ZstandardFile(io.RawIOBase):
    """The raw stream below the buffered reader."""

    def __init__(self, source: io.BufferedReader, zstandard: Any) -> None:
        self._source = source
        self._chunks = self._decompressed(zstandard)
        self._left = b""

    def readable(self) -> bool:
        """Return True: the stream is for reading."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill some of `buffer`; 0 at the end."""
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = chunk
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size

    def close(self) -> None:
        """Close the file as well."""
        self._source.close()
        super().close()

    def _decompressed(self, zstandard: Any) -> Iterator[bytes]:
        """Yield parts of text; OSError where the file is damaged or cut off."""
        frame = None
        while data := self._source.read(_CHUNK_BYTES):
            while data:
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                try:
                    yield frame.decompress(data)
                except zstandard.ZstdError as err:
                    raise OSError(str(err)) from err
                data = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
        if frame is not None:
            raise OSError("the last zstandard frame is cut off")
