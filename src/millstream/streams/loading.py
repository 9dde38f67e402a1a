"""Loading apps from a file without running them: `millstream streams run app.py` and its like."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.streams.problems import StreamsError

if TYPE_CHECKING:
    from millstream.streams.app import App


@dataclass(frozen=True)
class Settings:
    """What was said outside of the file; it wins over what the file says."""

    bootstrap: str | None = None
    state: str | None = None
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    has_ui: bool = False
    ships: bool = False


@dataclass
class Loading:
    """A file that is being loaded."""

    settings: Settings
    apps: list[App] = field(default_factory=list)


_current: Loading | None = None


def current() -> Loading | None:
    """The file that is being loaded. While there is one, `app.run()` does nothing."""
    return _current


def load(path: str | Path, settings: Settings | None = None) -> list[App]:
    """The apps that a file makes. The file runs as a program, but for its calls of `run`."""
    from millstream.streams.failures import explained

    file = Path(path)
    if not file.is_file():
        raise StreamsError(f"there is no file {file}")
    with _loading(settings or Settings()) as loading, explained():
        sys.path.insert(0, str(file.parent.absolute()))
        try:
            runpy.run_path(str(file), run_name="__main__")
        finally:
            sys.path.pop(0)
    if not loading.apps:
        raise StreamsError(f"{file} makes no App")
    return loading.apps


@contextmanager
def _loading(settings: Settings) -> Iterator[Loading]:
    global _current
    before, _current = _current, Loading(settings)
    try:
        yield _current
    finally:
        _current = before
