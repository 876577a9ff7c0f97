"""What a check found: how it stands, what that means, what to do about it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from qworkspace.base.lock import Holder, is_held, read_holder
from qworkspace.config.home import HomeConfig
from qworkspace.config.store import ConfigStore
from qworkspace.errors import QworkspaceError


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result. `fix` mends it without risk, where that is possible; it answers with what it did."""

    check: str
    level: Level
    message: str
    advice: str = ""
    fix: Callable[[], str] | None = None

    def mended(self) -> Finding:
        """The finding after its fix: mended, or why it could not be."""
        if self.fix is None:
            return self
        try:
            return replace(self, level=Level.OK, message=self.fix(), advice="", fix=None)
        except (OSError, QworkspaceError) as error:
            return replace(self, advice=f"{self.advice} (mending failed: {error})".strip(), fix=None)


def ok(check: str, message: str) -> Finding:
    return Finding(check, Level.OK, message)


def warning(check: str, message: str, advice: str, fix: Callable[[], str] | None = None) -> Finding:
    return Finding(check, Level.WARNING, message, advice, fix)


def wrong(check: str, message: str, advice: str, fix: Callable[[], str] | None = None) -> Finding:
    return Finding(check, Level.ERROR, message, advice, fix)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is being looked at: a home, its configuration as far as it can be read, and who serves it."""

    home: Path
    store: ConfigStore
    config: HomeConfig | None
    holder: Holder | None
    network: bool = True

    @classmethod
    def of(cls, home: Path, *, environ: Mapping[str, str] = os.environ, network: bool = True) -> Subject:
        """The home as it is now; whatever of it is broken is left for the checks to find."""
        store = ConfigStore(home, environ=environ)
        lock = home / ".daemon" / "lock"
        try:
            config = store.load_home()
        except (OSError, QworkspaceError):
            config = None
        return cls(home, store, config, read_holder(lock) if is_held(lock) else None, network)


Check = Callable[[Subject], Iterator[Finding]]
