"""`python -m qworkspace` is the command line."""

from __future__ import annotations

from qworkspace.cli.main import main

if __name__ == "__main__":
    main()
