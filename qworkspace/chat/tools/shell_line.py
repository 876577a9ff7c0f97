"""A shell command looked at before it runs: its simple commands, the paths it names, the few that never run.

This is a seat belt, not a boundary: a shell has endless ways to hide what it does.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from os.path import normpath
from pathlib import Path, PurePath

PATHS = 100
FOLLOWED = 20
_TOKEN = re.compile(
    r"""(?P<harmless>[012]?>&[012](?=[\s;&|]|\Z)|(?:&|[012])?>{1,2}[ \t]{0,9}/dev/null(?=[\s;&|]|\Z))
    |(?P<joint>[;&|\n])
    |(?P<word>[^\\'"`$<>(){};&|\n0-2]+|[0-2]|\\.|'[^']*'|"(?:[^"\\`$]|\\.|\$(?![({'"]))*+"|\$(?![({'"]))""",
    re.VERBOSE | re.DOTALL,
)
_PATH = re.compile(r"""[^\s'"()=<>|;&,`{}]+""")
_HOME = re.compile(r"\$HOME\b|\$\{HOME\}|(?<![^\s'\"=:<>(])~(?=/|[\s'\";&|)]|\Z)")
_DEVICE = r"/dev/(?:sd[a-z]|hd[a-z]|vd[a-z]|xvd[a-z]|nvme\d|mmcblk\d|disk\d|rdisk\d|md\d|dm-\d|mapper/)"
_BOMB = r"(?<![\w:.])([\w:.]{1,40})\s{0,9}\(\s{0,9}\)\s{0,9}\{[^}]{0,200}?(?<![\w:.])\1\s{0,9}\|\s{0,9}\1\s{0,9}&"
_NEVER = (
    (re.compile(_BOMB), "it starts copies of itself without end"),
    (re.compile(rf"\bof=['\"]?{_DEVICE}"), "it overwrites a disk"),
    (re.compile(rf">\s{{0,9}}['\"]?{_DEVICE}"), "it overwrites a disk"),
)
_SUSPECT = re.compile(r"\b(?:rm|chmod|chown|chgrp|mk\w|wipefs|tee|shred|cp|mv|blkdiscard|truncate)")
_DISK = re.compile(_DEVICE)
_DISK_WRITERS = frozenset({"tee", "shred", "cp", "mv", "blkdiscard", "truncate"})
_DISK_PROGRAMS = re.compile(r"(?:mkfs(?:\..+)?|mke2fs|wipefs|mkswap)\Z")
_WRAPPERS = frozenset(
    {"sudo", "doas", "env", "nohup", "nice", "time", "command", "exec", "builtin", "setsid", "busybox"}
)
_SYSTEM = frozenset(
    {"/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/opt", "/proc", "/root", "/sbin", "/srv", "/sys"}
    | {"/usr", "/var", "/Applications", "/Library", "/System", "/Users"}
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a command runs: its directory, the person's home directory, and the workspace that must stay."""

    directory: Path
    user_home: Path
    workspace: Path


def simple_commands(line: str) -> list[str] | None:
    """The commands of a line joined by `;`, `&`, `|`, `&&`, `||` or line ends, without harmless redirections.

    None when it holds something whose effect cannot be told from its words: substitutions, redirections into files,
    groups, functions, here-documents, an open quote.
    """
    pieces, position = [""], 0
    while position < len(line):
        token = _TOKEN.match(line, position)
        if token is None:
            return None
        if token.lastgroup == "joint":
            pieces.append("")
        elif token.lastgroup == "word":
            pieces[-1] += token[0]
        position = token.end()
    return [piece.strip() for piece in pieces if piece.strip()]


def never(line: str, where: Surroundings) -> str | None:
    """Why the line is on the short list of what no setting allows; None when it is not."""
    for pattern, reason in _NEVER:
        if pattern.search(line):
            return reason
    for piece, directory in _pieces(line, where):
        words = _words(piece) if _SUSPECT.search(piece) else []
        if not words:
            continue
        program = PurePath(words[0]).name
        if _DISK_PROGRAMS.match(program):
            return "it makes or wipes a file system"
        if program in _DISK_WRITERS and any(_DISK.match(word) for word in words):
            return "it overwrites a disk"
        if program in ("rm", "chmod", "chown", "chgrp") and _recursive(words):
            for word in words[1:]:
                if not word.startswith("-") and _essential(_absolute(word, directory, where), where):
                    return f"{program} of everything below {word!r}"
    return None


def named_paths(line: str, where: Surroundings) -> list[Path]:
    """The absolute paths that words of the line may mean, `cd` followed, `..` taken away; globs stay in them.

    At most `PATHS` of them: with that many there may be more.
    """
    found: dict[str, None] = {}
    for piece, directory in _pieces(line, where):
        for word in dict.fromkeys(_PATH.findall(piece)):
            for part in {word, word.rpartition(":")[2], word.rpartition("@")[2]}:
                found.setdefault(_absolute(part, directory, where))
            if len(found) >= PATHS:
                return [Path(path) for path in found][:PATHS]
    return [Path(path) for path in found]


def _pieces(line: str, where: Surroundings) -> Iterator[tuple[str, str]]:
    """Rough simple commands with the directory in which each runs, as far as `cd` with plain words tells."""
    directory, changes = str(where.directory), 0
    for piece in re.split(r"[;&|\n()`{}]+", _HOME.sub(lambda _: str(where.user_home), line)):
        yield piece, directory
        head = piece.split(maxsplit=1)[:1]
        if head and head[0] in ("cd", "pushd") and changes < FOLLOWED:
            words = _words(piece)
            target = next((word for word in words[1:] if not word.startswith("-")), "~")
            directory, changes = _absolute(target, directory, where), changes + 1


def _words(piece: str) -> list[str]:
    try:
        words = shlex.split(piece, comments=True)
    except ValueError:
        words = piece.split()
    while words and (words[0] in _WRAPPERS or words[0].startswith("-") or re.match(r"\w+=", words[0])):
        words.pop(0)
    return words


def _absolute(word: str, directory: str, where: Surroundings) -> str:
    word = str(where.user_home) if word == "~" else word
    return normpath(word if word.startswith("/") else f"{directory}/{word}")


def _recursive(words: list[str]) -> bool:
    flags = [word for word in words[1:] if word.startswith("-")]
    return any(flag == "--recursive" or (not flag.startswith("--") and ("r" in flag or "R" in flag)) for flag in flags)


def _essential(path: str, where: Surroundings) -> bool:
    """Whether the system, the person's home directory or the workspace itself would be gone with `path`."""
    if path.endswith(("/*", "/.*")):
        path = path.rpartition("/")[0] or "/"
    below = path if path.endswith("/") else f"{path}/"
    return path in _SYSTEM or any(f"{kept}/".startswith(below) for kept in (where.workspace, where.user_home))
