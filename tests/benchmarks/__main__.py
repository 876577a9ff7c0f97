"""`python -m tests.benchmarks [NAME …]`: measure, print value, goal and ratio. Exit code 1 when a goal is missed.

`--markdown` prints the table of the README.
"""

from __future__ import annotations

import importlib
import sys

from tests.benchmarks.harness import Figure

BENCHMARKS = ("install", "startup", "turns", "agents", "reload")


def main(arguments: list[str]) -> int:
    """Run the named benchmarks (all without a name)."""
    markdown = "--markdown" in arguments
    names = [name for name in arguments if not name.startswith("--")] or BENCHMARKS
    figures: list[Figure] = []
    for name in names:
        measured: list[Figure] = importlib.import_module(f"tests.benchmarks.{name}").run()
        figures += measured
        if not markdown:
            print(*(figure.row() for figure in measured), sep="\n", flush=True)
    if markdown:
        print("| figure | value | goal | ratio |", "|---|---|---|---|", sep="\n")
        print(*(f"| {f.name} | {f.value:.3g} {f.unit} | {f.goal} | {f.ratio} |" for f in figures), sep="\n")
    return 0 if all(figure.met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
