"""Real daemons for service tests, ended with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import DaemonProcess

MakeDaemon = Callable[..., DaemonProcess]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/service/" in item.nodeid:
            item.add_marker("service")


@pytest.fixture
def make_daemon(tmp_path: Path) -> Iterator[MakeDaemon]:
    """Makes daemons on a home of this test (or the one given), not started."""
    made: list[DaemonProcess] = []

    def make(home: Path | None = None, **options: Any) -> DaemonProcess:
        daemon = DaemonProcess(home if home is not None else tmp_path / "home", **options)
        made.append(daemon)
        return daemon

    yield make
    for daemon in made:
        daemon.close()


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> DaemonProcess:
    """A daemon on a fresh home, started: the offline model, the default agent."""
    return make_daemon().start()
