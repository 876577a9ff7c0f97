"""Memory that was freed goes back to the system, where the C library would keep it (glibc). Elsewhere nothing happens.

glibc serves threads from heaps of their own, and after it has freed one large block it serves others of that size from
there too. What is left of a built index would be more than the index itself.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

_M_MMAP_THRESHOLD = -3  # mallopt(3)
LARGE = 1 << 20


def keep_large_blocks_apart() -> None:
    """From now on a block of a mebibyte or more is memory of its own, which goes back as soon as it is freed."""
    if sys.platform.startswith("linux"):
        with suppress(AttributeError, OSError):  # another C library
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE)


def give_back() -> None:
    """Return what is free. Blocks for some milliseconds."""
    if sys.platform.startswith("linux"):
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).malloc_trim(0)
