"""The examples of docs/cli.md, run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.cli.main import COMMANDS
from millstream.testing import Broker

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
MARK = "-- next --"


def examples() -> list[tuple[str, str]]:
    """Each `$ command` in a console block with the output shown below it."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for line in block.splitlines(keepends=True):
            if line.startswith("$ "):
                found.append((line[2:].rstrip("\n"), ""))
            else:
                command, output = found[-1]
                found[-1] = (command, output + line)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder with a `millstream` program on its path, and a broker that has no topics yet."""
    made = tmp_path_factory.mktemp("docs")
    program = made / "bin" / "millstream"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m millstream.cli.main "$@"\n')
    program.chmod(0o755)
    with Broker() as broker:
        yield made, broker.bootstrap


def test_the_examples_do_what_the_page_shows(folder: tuple[Path, str]) -> None:
    path, bootstrap = folder
    shown = examples()
    assert len(shown) > 20
    script = "".join(f"{command}\necho '{MARK}'\n" for command, _ in shown)
    environment = {
        **os.environ,
        "PATH": f"{path / 'bin'}:{os.environ['PATH']}",
        "MILLSTREAM_BOOTSTRAP": bootstrap,
    }
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        stdin=subprocess.DEVNULL,
    )
    outputs = done.stdout.split(f"{MARK}\n")
    assert done.returncode == 0, f"{shown[len(outputs) - 1][0]}: {outputs[-1]}{done.stderr}"
    assert done.stderr == ""
    for (command, expected), output in zip(shown, outputs, strict=False):
        parts = [re.escape(part) for part in expected.rstrip("\n").split("…")]
        assert re.fullmatch(".*".join(parts), output.rstrip("\n"), re.DOTALL), f"{command}\n{output}"


def test_every_command_has_a_section() -> None:
    sections = re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)
    assert [section.split()[0] for section in sections[:-1]] == list(COMMANDS)
