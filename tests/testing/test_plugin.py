"""The pytest fixtures, used by tests that pytest runs within this test."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

PLUGIN = "millstream.testing.plugin"


def run_pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    loaded = ["-p", PLUGIN] if not is_installed() else []
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", *loaded, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)


def is_installed() -> bool:
    """Whether pytest finds the plugin by itself."""
    from importlib.metadata import entry_points

    return any(entry.value == PLUGIN for entry in entry_points(group="pytest11"))


def test_fixtures(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\n"
        "@pytest.fixture(scope='session')\n"
        "def millstream_config():\n"
        "    return {'num.partitions': '3'}\n"
    )
    (tmp_path / "test_it.py").write_text(
        "import socket\n"
        "names = []\n"
        "def test_first(millstream_broker, millstream_topic):\n"
        "    one, two = millstream_topic(partitions=2), millstream_topic()\n"
        "    assert one != two\n"
        "    assert millstream_topic('named') == 'named'\n"
        "    names.extend([one, two, 'named'])\n"
        "    assert set(names) <= set(millstream_broker.topics())\n"
        "def test_second(millstream_broker, millstream_topic):\n"
        "    assert not set(names) & set(millstream_broker.topics()), 'topics of the first test are left'\n"
        "    assert millstream_topic('named', configs={'retention.ms': '1000'}) == 'named'\n"
        "    host, port = millstream_broker.bootstrap.split(':')\n"
        "    socket.create_connection((host, int(port))).close()\n"
    )
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_package_is_imported_as_it_is_within_our_own_tests() -> None:
    """pytest would rewrite it as it does tests, and in two threads at once, which Python 3.11 cannot bear."""
    module = importlib.import_module("millstream.cli.offset_range")
    assert type(module.__loader__).__name__ == "SourceFileLoader"


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    """pytest loads it in every project of an environment that has Millstream."""
    code = (
        "import pytest, sys\n"
        "before = set(sys.modules)\n"
        f"import {PLUGIN}\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "assert new == {'millstream'}, new\n"
        "assert 'millstream.testing.broker' not in sys.modules\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["millstream", "millstream.testing", PLUGIN]
