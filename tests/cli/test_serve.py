"""`millstream serve`: one line when it is ready, a clean end, and errors that say what to do."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream.cli.main import COMMANDS
from tests.cli.conftest import CommandLine
from tests.cli.programs import COMMAND, start
from tests.processes import free_port


@contextmanager
def serving(data: Path, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A broker that has said that it is ready, and its port."""
    port = free_port()
    process = start("serve", "--listen", f"127.0.0.1:{port}", "--data", str(data), *words)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert line == f"Millstream is ready on 127.0.0.1:{port}, with its data in {data}\n", process.stderr
        yield process, port
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=20)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_one_line_and_ends_cleanly(
    tmp_path: Path, millstream: CommandLine, number: signal.Signals
) -> None:
    data = tmp_path / "data"
    with serving(data) as (process, port):
        millstream("produce", "kept", "-b", f"127.0.0.1:{port}", given=b"a\nb\n")
        with socket.create_connection(("127.0.0.1", port)):
            process.send_signal(number)
            assert ended(process) == (0, b"", b"")
    assert (data / ".kafka_cleanshutdown").exists()
    with serving(data) as (_, port):
        assert millstream("consume", "kept", "--exit", "-f", "%v", "-b", f"127.0.0.1:{port}").text == "ab"


def test_options_win_over_the_file(tmp_path: Path, millstream: CommandLine) -> None:
    file = tmp_path / "server.properties"
    file.write_text("# Kafka's own format\nnum.partitions=3\nlog.retention.hours=5\n")
    with serving(tmp_path / "data", "--config", str(file), "-o", "num.partitions=2") as (_, port):
        bootstrap = f"127.0.0.1:{port}"
        millstream("produce", "auto", "-b", bootstrap, given=b"x\n")
        (topic,) = millstream("topic", "list", "--json", "-b", bootstrap).json
        assert topic["partitions"] == 2
        (retention,) = millstream("topic", "config", "auto", "retention.ms", "--json", "-b", bootstrap).json
        assert (retention["value"], retention["source"]) == ("18000000", "static broker")


def test_a_broker_on_all_addresses_tells_clients_one_that_they_can_use(
    tmp_path: Path, millstream: CommandLine
) -> None:
    for words, told in (
        ([], {socket.gethostname(), "localhost"}),
        (["--advertise", "127.0.0.1"], {"127.0.0.1"}),
    ):
        process = start("serve", "--listen", "0.0.0.0:0", "--data", str(tmp_path / "data"), *words)
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        found = re.match(r"Millstream is ready on 0\.0\.0\.0:(\d+) \(clients are told (.*):(\d+)\)", line)
        assert found is not None, line
        assert found[2] in told
        assert found[1] == found[3]
        millstream("topic", "create", "t", "--if-not-exists", "-b", f"127.0.0.1:{found[1]}")
        process.send_signal(signal.SIGTERM)
        assert ended(process) == (0, b"", b"")


def test_a_port_in_use(tmp_path: Path) -> None:
    with serving(tmp_path / "one") as (_, port):
        code, out, err = ended(
            start("serve", "--listen", f"127.0.0.1:{port}", "--data", str(tmp_path / "two"))
        )
    assert (code, out) == (1, b"")
    assert f"127.0.0.1:{port} is in use by another program" in err.decode()
    assert "--listen" in err.decode()
    assert b"Traceback" not in err


def test_a_folder_in_use(tmp_path: Path) -> None:
    with serving(tmp_path / "one"):
        code, out, err = ended(
            start("serve", "--listen", f"127.0.0.1:{free_port()}", "--data", str(tmp_path / "one"))
        )
    assert (code, out) == (1, b"")
    assert str(tmp_path / "one") in err.decode()
    assert "--data DIR" in err.decode()
    assert b"Traceback" not in err


def test_a_number_in_use(tmp_path: Path) -> None:
    registry = [
        "--registry",
        f"sqlite:{tmp_path}",
        "-o",
        "node.id=2",
        "-o",
        "registry.session.timeout.ms=1000",
    ]
    with serving(tmp_path / "one", *registry) as (_, port):
        code, out, err = ended(
            start("serve", "--listen", f"127.0.0.1:{free_port()}", "--data", str(tmp_path / "two"), *registry)
        )
    assert (code, out) == (1, b"")
    told = f"error: broker 2 is running already, at 127.0.0.1:{port}: give this one another node.id\n"
    assert err.decode().endswith(told)
    assert "waiting up to 2 s" in err.decode()
    assert b"Traceback" not in err


def test_a_folder_that_cannot_be_made_beside_one_that_can(tmp_path: Path, millstream: CommandLine) -> None:
    port = free_port()
    dirs = f"{tmp_path / 'good'},/dev/null/bad"
    process = start("serve", "--listen", f"127.0.0.1:{port}", "-o", f"log.dirs={dirs}")
    assert process.stdout is not None
    assert b"is ready" in process.stdout.readline()
    millstream("produce", "t", "-b", f"127.0.0.1:{port}", given=b"a\n")
    assert millstream("consume", "t", "--exit", "-f", "%v", "-b", f"127.0.0.1:{port}").text == "a"
    process.send_signal(signal.SIGTERM)
    code, _, err = ended(process)
    assert code == 0
    assert "the log dir /dev/null/bad has failed" in err.decode()


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["-o", "num.partitons=2"], 1, "num.partitions"),
        (["-o", "num.partitions=two"], 1, "num.partitions"),
        (["-o", "num.partitions"], 2, "-o key=value"),
        (["--listen", "localhost:port"], 2, "write HOST:PORT"),
        (["--config", "no-such-file"], 2, "no-such-file"),
        (["--metrics", "localhost"], 1, "metrics.listener takes HOST:PORT"),
        (["--metrics", "192.0.2.1:9404", "--listen", "localhost:0"], 1, "metrics.listener=192.0.2.1:9404"),
        (["-o", "max.connections.per.ip.overrides=nohost.invalid:3"], 1, "max.connections.per.ip.overrides"),
        (["-o", "listener.name.plaintext.num.partitions=3"], 1, "one listener alone"),
        (["--listen", "192.0.2.1:9092"], 1, "not an address of this machine"),
        (["--listen", "no-such-host.invalid:9092"], 1, "a name that nobody knows"),
        (["--data", "/dev/null/data"], 1, "--data"),
        (["--data", "/proc/data"], 1, "--data"),
    ],
)
def test_what_cannot_be_served(tmp_path: Path, words: list[str], code: int, reason: str) -> None:
    ending, out, err = ended(start("serve", *words, cwd=tmp_path))
    assert (ending, out) == (code, b"")
    assert reason in err.decode()
    assert b"Traceback" not in err


def test_help_is_quick_and_imports_no_command() -> None:
    """A person waits for it; a broker's start pays for nothing that it does not need."""
    started = time.process_time()
    code = (
        "import sys\n"
        "from millstream.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        "heavy = {'asyncio', 'rich', 'uvloop', 'msgspec', 'millstream.client', 'millstream.broker'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)
    assert time.process_time() - started < 1


def test_serving_imports_nothing_that_it_does_not_need() -> None:
    code = (
        "import sys\n"
        "import millstream.cli.serve, millstream.broker.server\n"
        "unneeded = {'rich', 'prometheus_client', 'millstream.client.cluster', 'millstream.testing'}\n"
        "assert not unneeded & set(sys.modules), unneeded & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [[name] for name in COMMANDS] + [["topic", "create"], ["log", "dump"]])
def test_every_command_has_help_with_examples(millstream: CommandLine, words: list[str]) -> None:
    text = millstream(*words, "--help").text
    assert text.startswith(f"Usage: millstream {' '.join(words)}")
    assert "Examples:" in text or "Commands:" in text
    assert millstream(*words, "-h").text == text


def test_the_module_is_the_command() -> None:
    words = [sys.executable, "-m", "millstream", "serve", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: millstream serve")


def test_version() -> None:
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, timeout=60)
    from millstream.client.connection import SOFTWARE_VERSION

    assert (done.returncode, done.stdout) == (0, f"millstream {SOFTWARE_VERSION}\n"), done.stderr
