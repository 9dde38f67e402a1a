"""Loading an app from a file without running it: `millstream streams run app.py` and its like."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.streams.problems import StreamsError

if TYPE_CHECKING:
    from millstream.streams.app import App

_found: list[App] | None = None


def is_loading() -> bool:
    """Whether a file is being loaded: then `app.run()` in it does nothing."""
    return _found is not None


def made(app: App) -> None:
    """An app was made; whoever loads a file wants to know."""
    if _found is not None:
        _found.append(app)


def load(path: str | Path) -> list[App]:
    """The apps that a file makes. The file runs as a program, but for its calls of `run`."""
    file = Path(path)
    if not file.is_file():
        raise StreamsError(f"there is no file {file}")
    with _collecting() as found:
        sys.path.insert(0, str(file.parent.absolute()))
        runpy.run_path(str(file), run_name="__main__")
    if not found:
        raise StreamsError(f"{file} makes no App")
    return found


@contextmanager
def _collecting() -> Iterator[list[App]]:
    global _found
    before, _found = _found, []
    try:
        yield _found
    finally:
        _found = before
