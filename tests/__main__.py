"""`python -m tests`: everything that must hold before a change lands: ruff, mypy --strict, pytest.

Arguments go to pytest: `python -m tests tests/unit -x`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKS = {
    "ruff": ["ruff", "check", "."],
    "mypy": ["mypy"],
    "pytest": ["pytest"],
}
WHOLE = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
"""For two cores. What is named is run as it is, so that it can be watched and debugged."""


def main(arguments: list[str]) -> int:
    """Run all checks, whatever the others say; 0 when every one of them passed.

    The tests wait for processes half of the time: the others run beside them, and are printed after them.
    """
    beside = {name: _begin(CHECKS[name]) for name in CHECKS if name != "pytest"}
    print("== pytest", flush=True)
    tests = subprocess.run([sys.executable, "-m", *CHECKS["pytest"], *(arguments or WHOLE)], cwd=ROOT)
    failed = ["pytest"] if tests.returncode != 0 else []
    for name, process in beside.items():
        told, _ = process.communicate()
        print(f"== {name}", told, sep="\n", flush=True)
        if process.returncode != 0:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _begin(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
