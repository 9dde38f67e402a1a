"""Keeps the code under simulation honest: it may not reach around the simulation to the real machine.

While a world runs, a module of the package that asks the machine for time, randomness,
threads or files fails the run. Others (the interpreter's own logging, a test runner) go on unharmed.
"""

from __future__ import annotations

import builtins
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PACKAGE = "millstream"

FORBIDDEN: tuple[tuple[Any, str], ...] = (
    (time, "time"),
    (time, "time_ns"),
    (time, "monotonic"),
    (time, "monotonic_ns"),
    (time, "perf_counter"),
    (time, "perf_counter_ns"),
    (time, "sleep"),
    (os, "urandom"),
    (os, "open"),
    (os, "listdir"),
    (os, "scandir"),
    (os, "stat"),
    (uuid, "uuid1"),
    (uuid, "uuid4"),
    (builtins, "open"),
    (threading.Thread, "start"),
)


@contextmanager
def no_escape(fail: Callable[[str], None]) -> Iterator[None]:
    """Watch the doors out of the simulation for as long as the block runs."""
    here = threading.get_ident()  # other threads of the test process are not part of the simulation
    originals = [(owner, name, getattr(owner, name)) for owner, name in FORBIDDEN]
    for owner, name, original in originals:
        setattr(owner, name, _watched(name, original, fail, here))
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _watched(
    name: str, original: Callable[..., Any], fail: Callable[[str], None], thread: int
) -> Callable[..., Any]:
    def watched(*args: Any, **options: Any) -> Any:
        module = sys._getframe(1).f_globals.get("__name__", "")
        if module.partition(".")[0] == PACKAGE and threading.get_ident() == thread:
            fail(f"{module} reached around the simulation: it called {name}()")
        return original(*args, **options)

    return watched
