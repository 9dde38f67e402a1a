"""Runs the command line in this process, against a broker of its own."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.main import run
from millstream.testing import Broker


@dataclass(frozen=True)
class Result:
    """What a command printed and how it ended."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class CommandLine:
    """`millstream WORDS...` with a broker's address in the environment."""

    def __init__(
        self, capture: pytest.CaptureFixture[bytes], patch: pytest.MonkeyPatch, folder: Path
    ) -> None:
        self._capture = capture
        self._patch = patch
        self._folder = folder

    def run(self, *words: str, given: bytes = b"") -> Result:
        """Run a command to its end, whatever that is."""
        path = self._folder / "stdin"
        path.write_bytes(given)
        with path.open("rb") as file:
            self._patch.setattr("sys.stdin", io.TextIOWrapper(file))
            code = run(list(words))
        out, err = self._capture.readouterr()
        return Result(code, out, err.decode())

    def __call__(self, *words: str, given: bytes = b"") -> Result:
        """Run a command that must succeed."""
        result = self.run(*words, given=given)
        assert result.code == 0, f"millstream {' '.join(words)}: {result.err}"
        return result


@pytest.fixture(scope="module")
def cli_broker() -> Iterator[Broker]:
    """Gone before other modules: a simulation must not share its process with a broker's thread."""
    with Broker() as broker:
        yield broker


@pytest.fixture
def millstream(
    cli_broker: Broker,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> CommandLine:
    monkeypatch.setenv(
        "MILLSTREAM_BOOTSTRAP", os.environ.get("MILLSTREAM_TEST_BOOTSTRAP", cli_broker.bootstrap)
    )
    return CommandLine(capfdbinary, monkeypatch, tmp_path)
