"""What this process keeps of memory that it has freed."""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3  # malloc.h of glibc
_LARGE_BYTES = 8 << 20


def return_large_blocks() -> bool:
    """Make freed blocks of 8 MiB and more go back to the system at once, as glibc has it at first.

    Without it glibc raises the size from which blocks go back up to 32 MiB as they are freed, and
    the pieces that stay let a long job grow by 10 to 15 percent. Smaller blocks stay: to fetch
    them again and again costs time.

    Returns:
        Whether the C library has the setting (glibc alone does).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES) == 1)
