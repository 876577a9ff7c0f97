"""The suite's guards, for every test."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.support.guards import Guards, use_home


def pytest_configure(config: pytest.Config) -> None:
    guards = Guards()
    guards.start()
    config.add_cleanup(guards.stop)
    config.pluginmanager.register(guards, "qworkspace-guards")
    home = tempfile.TemporaryDirectory(prefix="qworkspace-test-home-")
    config.add_cleanup(home.cleanup)
    use_home(Path(home.name))
