"""How commands print: data on stdout (as JSON where asked), everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from qworkspace.base.text import visible

HomeOption = Annotated[
    str, typer.Option("--home", metavar="DIR", help="The home; default $QWORKSPACE_HOME or ~/.qworkspace.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_text(text: str, *, end: str = "\n") -> None:
    """Print as it is; on a terminal nothing that others have written may steer it."""
    sys.stdout.write((visible(text) if sys.stdout.isatty() else text) + end)
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """`value` as indented JSON."""
    print_text(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Rows under headings, aligned; wide characters count twice. Nothing but a word when there are no rows."""
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        print("none")
        return
    table = [[heading.upper() for heading in headings], *cells]
    widths = [max(_width(row[column]) for row in table) for column in range(len(headings))]
    for row in table:
        line = "  ".join(text + " " * (width - _width(text)) for text, width in zip(row, widths, strict=True))
        print(line.rstrip())


def note(text: str) -> None:
    """A remark for the person; a program that reads stdout does not see it."""
    print(visible(text), file=sys.stderr, flush=True)


def local(moment: str | None) -> str:
    """An ISO time as the person's clock shows it."""
    return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M}" if moment else ""


def ask(question: str) -> str:
    """One line from the terminal; empty at its end."""
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return visible(" ".join(str(value).split()))


def _width(text: str) -> int:
    from rich.cells import cell_len  # 30 ms that only tables pay

    return cell_len(text)
