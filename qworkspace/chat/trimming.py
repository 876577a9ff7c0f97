"""What the libraries of models bring along and the daemon never uses, kept out of its memory."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import cast


def trim_libraries() -> None:
    """Call it before the libraries are imported: what is freed here they use."""
    _leave_out_command_line()
    _drop_price_lists()


def _leave_out_command_line() -> None:
    """httpx tolerates that its command line is missing; it would bring click, rich and pygments: 3 MB and 0.1 s."""
    if "httpx" not in sys.modules:
        sys.modules.setdefault("httpx._main", cast(ModuleType, None))  # None: importing it raises ImportError


def _drop_price_lists() -> None:
    """What an answer costs is told by the configuration; what thousands of models cost takes 5 MB."""
    from genai_prices.data import providers  # heavy: a part of the model library

    for provider in providers:
        provider.models.clear()
