"""The daemon of `tests.support.ticking` with 256 file descriptors at most, as after `ulimit -n 256`."""

from __future__ import annotations

import runpy

FILES = 256

if __name__ == "__main__":
    import resource  # POSIX only

    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    runpy.run_module("tests.support.ticking", run_name="__main__")
