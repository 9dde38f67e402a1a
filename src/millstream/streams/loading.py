"""Loading apps from a file without running them: `millstream streams run app.py` and its like."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
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
_programs: list[ModuleType] = []
"""What was the program before: it runs on, and what it has stays."""


def current() -> Loading | None:
    """The file that is being loaded. While there is one, `app.run()` and `run(app)` do nothing."""
    return _current


def load(path: str | Path, settings: Settings | None = None) -> list[App]:
    """The apps that a file makes. The file runs as a program, but for its calls of `run`."""
    from millstream.streams.failures import explained

    file = Path(path)
    if not file.is_file():
        raise StreamsError(f"there is no file {file}")
    with _loading(settings or Settings()) as loading, explained():
        _run_as_program(file)
    if not loading.apps:
        raise StreamsError(f"{file} makes no App")
    return loading.apps


def _run_as_program(file: Path) -> None:
    """As `python FILE` does, and it stays so: functions of the file are called later, and what they import
    and what the hints of their classes name is to be found then."""
    sys.path.insert(0, str(file.parent.absolute()))
    sys.argv = [str(file)]
    program = ModuleType("__main__")
    program.__file__ = str(file)
    _programs.append(sys.modules["__main__"])
    sys.modules["__main__"] = program
    try:
        code = compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
        exec(code, program.__dict__)  # noqa: S102 - it is the program that was named
    except SystemExit as left:  # as by sys.exit(main()), where main() is to run the apps
        if isinstance(left.code, int) and left.code:
            raise StreamsError(f"{file} ended with exit code {left.code}") from None
        if left.code:
            raise StreamsError(f"{file} ended: {left.code}") from None


@contextmanager
def _loading(settings: Settings) -> Iterator[Loading]:
    global _current
    before, _current = _current, Loading(settings)
    try:
        yield _current
    finally:
        _current = before
