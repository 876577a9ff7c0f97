"""Names that a model or a page makes up never lead out of the places that are open."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qworkspace.chat.tools.fence import Fence
from qworkspace.chat.tools.places import Place, folded, place_of
from qworkspace.errors import QworkspaceError
from tests.support.fenced import SECRET, everything_else, make_home, text_of

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="links of POSIX")

NAMED = ". .. ... files FILES memory .state .State agent.json Agent.JSON jobs.json skills drivers plugins secrets.json"
LINKED = ".daemon workspaces other me MEMORY.md sessions.db a.txt link-state link-home link-skills link-out link-agent"
ODD = [
    "",
    "\x00",
    "a\\b",
    "~",
    "%2e%2e",
    "．．",
    "\u202e",
    "ſkills",
    "nul",
    "a ",
    "\ud800",
    "😀",
    "/",
    "//",
    "C:",
    "new",
]
TRICKY = st.sampled_from([*NAMED.split(), *LINKED.split(), "hard-secret", "hard-agent", *ODD])
NAMES = st.lists(TRICKY | st.text(max_size=4), min_size=1, max_size=6).map("/".join) | st.builds(
    lambda parts: "/" + "/".join(parts), st.lists(TRICKY, max_size=5)
)


@pytest.fixture(scope="module")
def trap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A workspace full of links to where no tool may go."""
    workspace = make_home(tmp_path_factory.mktemp("trap") / "home")
    for name, target in {
        "state": "../.state",
        "home": "../../..",
        "skills": "../skills",
        "out": "/",
        "agent": "../agent.json",
    }.items():
        (workspace / "files" / f"link-{name}").symlink_to(target)
    os.link(workspace.parent.parent / "secrets.json", workspace / "files" / "hard-secret")
    os.link(workspace / "agent.json", workspace / "files" / "hard-agent")
    yield workspace


@posix_only
@settings(max_examples=200, deadline=None)
@given(name=NAMES, prefix=st.sampled_from(["", "files/", "files/link-home/", "memory/", "./files/link-state/"]))
def test_no_name_reads_a_secret_or_changes_what_is_protected(trap: Path, name: str, prefix: str):
    fence = Fence(trap, trap.parent.parent)
    before = everything_else(trap)

    async def attack() -> None:
        for attempt in (prefix + name, str(trap / "files") + "/" + name):
            try:
                assert SECRET not in await text_of(fence, attempt)
            except QworkspaceError:
                pass
            try:
                await fence.write(attempt, b"attack")
            except QworkspaceError:
                continue

    asyncio.run(attack())
    assert everything_else(trap) == before


@given(st.text(max_size=20))
def test_the_folded_form_of_a_name_is_stable(name: str):
    assert folded(folded(name)) == folded(name)
    assert folded(name.upper()) == folded(name) or not name.isascii()


@given(st.lists(st.text(min_size=1, max_size=6), max_size=4))
def test_only_named_places_are_open(parts: list[str]):
    if place_of(parts) is Place.OPEN:
        assert parts[0] in ("files", "memory", "digest") or len(parts) == 1
