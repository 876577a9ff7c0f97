"""`python -m tests.benchmarks [NAME …]`: measure, print value, goal and ratio. Exit code 1 when a goal is missed.

`--markdown` prints a table instead; `--readme` puts it into README.md, under "Measured".
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import sys

from tests.benchmarks.harness import ROOT, Figure

BENCHMARKS = ("install", "startup", "turns", "agents", "reload", "memory")
README = ROOT / "README.md"
SECTION = re.compile(r"^## Measured\n.*?(?=^## )", re.MULTILINE | re.DOTALL)


def main(arguments: list[str]) -> int:
    """Run the named benchmarks (all without a name)."""
    options = {name for name in arguments if name.startswith("--")}
    names = [name for name in arguments if name not in options] or BENCHMARKS
    figures: list[Figure] = []
    for name in names:
        measured: list[Figure] = importlib.import_module(f"tests.benchmarks.{name}").run()
        figures += measured
        if "--markdown" not in options:
            print(*(figure.row() for figure in measured), sep="\n", flush=True)
    if "--markdown" in options:
        print(table(figures))
    if "--readme" in options:
        into_readme(figures)
    return 0 if all(figure.met for figure in figures) else 1


def table(figures: list[Figure]) -> str:
    """The figures as a markdown table."""
    rows = [f"| {f.name} | {f.amount} | {f.goal} | {f.ratio} |" for f in figures]
    return "\n".join(["| figure | value | goal | ratio |", "|---|---|---|---|", *rows])


def into_readme(figures: list[Figure]) -> None:
    """Replace the section "Measured", or add it before "License"."""
    where = f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}"
    told = (
        f"`python -m tests.benchmarks` on {where}. The ratio is to the bare Starlette + uvicorn process or to one"
        " agent, measured in the same run, else to the goal; of several rounds the best counts."
    )
    section = f"## Measured\n\n{told}\n\n{table(figures)}\n\n"
    text = README.read_text(encoding="utf-8")
    if SECTION.search(text) is None:
        text = text.replace("## License\n", "## Measured\n\n## License\n")
    README.write_text(SECTION.sub(lambda _: section, text), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
