"""`qworkspace doctor`: what is wrong, and how to mend it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from qworkspace.cli.checks import home as home_checks
from qworkspace.cli.checks import machine, models
from qworkspace.cli.checks.finding import Check, Finding, Level, Subject
from qworkspace.cli.output import HomeOption, JsonOption, print_json
from qworkspace.cli.up import home_directory

CHECKS: Sequence[Check] = (
    home_checks.writable,
    home_checks.room,
    home_checks.configuration,
    home_checks.secrets,
    home_checks.agents,
    machine.daemon,
    machine.port,
    models.connected,
    models.providers,
    machine.clock,
    machine.watches,
    machine.open_files,
)
MARKS = {Level.OK: "✓", Level.WARNING: "!", Level.ERROR: "✗"}


def doctor(
    home: HomeOption = "",
    fix: Annotated[bool, typer.Option("--fix", help="Mend what can be mended without risk.")] = False,
    network: Annotated[
        bool, typer.Option("--network/--no-network", help="Ask the configured providers whether they answer.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Look for what is wrong and say how to mend it; exits 1 when something is. Works without the daemon."""
    found = examine(Subject.of(home_directory(home), network=network))
    if fix:
        found = [finding.mended() for finding in found]
    healthy = all(finding.level is not Level.ERROR for finding in found)
    if as_json:
        print_json({"ok": healthy, "checks": [_facts(finding) for finding in found]})
    else:
        for finding in found:
            _show(finding)
    if not healthy:
        raise typer.Exit(1)


def examine(subject: Subject) -> list[Finding]:
    """All findings, in the order of the checks."""
    return [finding for check in CHECKS for finding in check(subject)]


def _show(finding: Finding) -> None:
    print(f"{MARKS[finding.level]} {finding.check}: {finding.message}")
    if finding.advice:
        hint = " (--fix does it)" if finding.fix is not None else ""
        print(f"    → {finding.advice}{hint}")


def _facts(finding: Finding) -> dict[str, object]:
    return {
        "check": finding.check,
        "level": finding.level.value,
        "message": finding.message,
        "advice": finding.advice,
        "fixable": finding.fix is not None,
    }
