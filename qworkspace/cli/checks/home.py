"""Checks of the home: there, writable, enough room, and every configuration in it readable."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from qworkspace.cli.checks.finding import Finding, Level, Subject, ok, warning, wrong
from qworkspace.config.cautions import agent_cautions, home_cautions
from qworkspace.errors import InvalidConfig, QworkspaceError

LOW_BYTES = 1_000_000_000
FULL_BYTES = 50_000_000
AGENTS_NAMED = 20


def writable(subject: Subject) -> Iterator[Finding]:
    """The home can be written, and so can what the daemon keeps in it."""
    home = subject.home
    if not home.exists():
        advice = "`qworkspace init` or `qworkspace up` makes it"
        yield warning("home", f"{home} does not exist yet", advice, lambda: _init(subject))
        return
    for directory in (home, home / ".daemon", home / "workspaces"):
        reason = _refusal(directory) if directory.exists() else None
        if reason is not None:
            yield wrong(
                "home",
                f"{directory} is not writable: {reason}",
                f"give it to this user (chown -R {_user()} {home}), or choose another home with --home",
            )
            return
    yield ok("home", f"{home} is writable")


def room(subject: Subject) -> Iterator[Finding]:
    """There is room on the disk."""
    try:
        free = shutil.disk_usage(subject.home).free
    except OSError:
        return
    text = f"{free / 1e9:.1f} GB free where {subject.home} is"
    advice = "make room: nothing can be stored on a full disk, so no message is accepted then"
    if free < FULL_BYTES:
        yield wrong("disk", text, advice)
    elif free < LOW_BYTES:
        yield warning("disk", text, advice)
    else:
        yield ok("disk", text)


def configuration(subject: Subject) -> Iterator[Finding]:
    """config.json can be used and holds no key that nothing reads."""
    file = subject.store.home_file
    if not file.exists():
        if subject.home.exists():
            yield warning(
                "config", f"{file} is missing", "`qworkspace init` writes a first one", lambda: _init(subject)
            )
        return
    try:
        subject.store.load_home()
    except (OSError, QworkspaceError) as error:
        yield _unusable("config", error, "the daemon starts without it; agents stay off until it is mended")
        return
    yield from _unknown(subject, None, "config", f"{file} is valid")


def secrets(subject: Subject) -> Iterator[Finding]:
    """secrets.json can be read, and by its owner only: reading it has mended that."""
    known = subject.store.secrets()
    for notice in known.notices():
        yield warning("secrets", notice, "if others use this machine, change the keys in it too")
    if known.problem is not None:
        yield _unusable("secrets", known.problem, "API keys and the access token in it are not known until then")


def agents(subject: Subject) -> Iterator[Finding]:
    """Every agent's agent.json can be used; the active agent exists."""
    if subject.config is None:
        return
    ids = subject.store.agent_ids(disabled=True)
    if not ids:
        yield wrong("agents", "there is no agent", "make one: qworkspace agents create default", lambda: _init(subject))
    active = subject.config.agents.active_agent
    if ids and active not in ids:
        yield wrong(
            "agents",
            f"the active agent {active!r} does not exist",
            f"set agents.active_agent in {subject.store.home_file} to one of: {', '.join(ids[:AGENTS_NAMED])}",
        )
    for caution in home_cautions(subject.config):
        # the rest of them is said above, and by the checks of the models
        disabled = caution.path == "agents.active_agent" and active in ids
        if disabled or caution.path.startswith(("roles.", "embedding.")):
            yield warning("config", caution.message, f"correct {caution.path} in {subject.store.home_file}")
    good = 0
    for agent_id in ids:
        found = list(_agent(subject, agent_id))
        good += all(finding.level is not Level.ERROR for finding in found)
        yield from found
    if good:
        yield ok("agents", f"{good} of {len(ids)} agents can start")


def _agent(subject: Subject, agent_id: str) -> Iterator[Finding]:
    try:
        config = subject.store.load_agent(agent_id, disabled=True)
    except (OSError, QworkspaceError) as error:
        effect = f"agent {agent_id!r} is off until it is mended; the others run"
        mend = (lambda: _init(subject)) if not subject.store.agent_file(agent_id).exists() else None
        yield _unusable(f"agent {agent_id}", error, effect, mend)
        return
    yield from _unknown(subject, agent_id, f"agent {agent_id}", "")
    if subject.config is not None:
        for caution in agent_cautions(config, subject.config):
            if caution.path == "model" and subject.config.default_model is None:
                continue  # said once, about config.json
            place = subject.store.agent_file(agent_id)
            yield warning(f"agent {agent_id}", caution.message, f"correct {caution.path} in {place}")


def _unknown(subject: Subject, agent_id: str | None, check: str, good: str) -> Iterator[Finding]:
    unknown = subject.store.unknown_keys(agent_id)
    for key in unknown:
        yield warning(check, key.message, "correct it, or remove it: nothing reads it")
    if not unknown and good:
        yield ok(check, good)


def _unusable(check: str, error: Exception, effect: str, mend: object = None) -> Finding:
    message = error.message if isinstance(error, QworkspaceError) else str(error)
    place = error if isinstance(error, InvalidConfig) and error.line is not None else None
    advice = f"mend line {place.line} of {place.file}; {effect}" if place is not None else effect
    return wrong(check, message, advice, mend if callable(mend) else None)


def _refusal(directory: Path) -> str | None:
    """Why nothing can be written there; None when it can."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _init(subject: Subject) -> str:
    subject.store.init_home()
    return f"made what was missing in {subject.home}"


def _user() -> str:
    return os.environ.get("USER") or os.environ.get("USERNAME") or "$(id -un)"
