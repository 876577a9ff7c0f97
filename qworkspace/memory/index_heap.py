"""Memory that was freed goes back to the system."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress


def give_back() -> None:
    """Return freed memory to the system, where the C library keeps it otherwise. Blocks for some milliseconds.

    glibc keeps what threads have freed in heaps of their own: after arrays were built and merged there, that is more
    than the arrays themselves. Elsewhere nothing happens.
    """
    if sys.platform.startswith("linux"):
        with suppress(AttributeError, OSError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)
