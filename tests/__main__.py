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
"""The whole suite uses two cores; what is named is run as it is, so that it can be watched and debugged."""


def main(arguments: list[str]) -> int:
    """Run all checks, whatever the earlier ones say; 0 when every one of them passed."""
    failed = []
    for name, command in CHECKS.items():
        print(f"== {name}", flush=True)
        extra = (arguments or WHOLE) if name == "pytest" else []
        if subprocess.run([sys.executable, "-m", *command, *extra], cwd=ROOT).returncode != 0:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
