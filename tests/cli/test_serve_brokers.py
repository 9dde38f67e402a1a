"""`millstream serve --brokers N`: one command, N processes, signals passed on, ends reported."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.programs import COMMAND, Terminal, start
from tests.processes import answers, free_port, free_ports, until

CONTAINER = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]
"""Runs a command as process 1 of processes of its own."""

BLOCKER = """\
import socket, sys, time
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("ready", flush=True)
time.sleep(60)
"""


@contextmanager
def serving(data: Path, *words: str, count: int = 3) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    port = free_ports(count)
    process = start(
        "serve", "--listen", f"127.0.0.1:{port}", "--data", str(data), "--brokers", str(count), *words
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        where = ", ".join(f"127.0.0.1:{port + step}" for step in range(count))
        expected = f"Millstream is ready on {where}, with its data in {data}\n"
        assert line == expected, process.communicate(timeout=20)[1].decode()
        yield process, port
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=60)


def pids(data: Path) -> dict[int, int]:
    return {
        int(path.parent.name.partition("-")[2]): int(path.read_text()) for path in data.glob("broker-*/pid")
    }


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def millstream(port: int, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words, "-b", f"127.0.0.1:{port}"], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_three_processes_from_one_command(tmp_path: Path, number: signal.Signals) -> None:
    data = tmp_path / "data"
    with serving(data) as (process, port):
        found = pids(data)
        assert sorted(found) == [1, 2, 3]
        assert all(map(is_alive, found.values()))
        info = json.loads(millstream(port + 1, "cluster", "info", "--json").stdout)
        assert [broker["address"] for broker in info["brokers"]] == [
            f"127.0.0.1:{port + step}" for step in range(3)
        ]
        made = millstream(port, "topic", "create", "t", "-p", "3", "-r", "3")
        assert made.returncode == 0, made.stderr
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, b"", b"")
        assert pids(data) == {}
        assert not any(map(is_alive, found.values()))
        assert (data / "registry.db").exists()
        assert all((data / f"broker-{number}" / ".kafka_cleanshutdown").exists() for number in (1, 2, 3))


def test_the_registry_that_is_the_default_may_be_named(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--registry", "sqlite", count=2) as (_, port):
        info = json.loads(millstream(port, "cluster", "info", "--json").stdout)
        assert [broker["id"] for broker in info["brokers"]] == [1, 2]


def test_internal_topics_are_replicated_by_the_number_of_brokers(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "-o", "offsets.topic.num.partitions=2") as (_, port):
        millstream(port, "group", "describe", "nobody")  # who asks for a coordinator has the topic made
        found = until(
            lambda: next(
                (
                    topic
                    for topic in json.loads(
                        millstream(port, "topic", "list", "--internal", "--json").stdout or "[]"
                    )
                    if topic["name"] == "__consumer_offsets"
                ),
                None,
            ),
            20,
            "an internal topic",
        )
        assert found["replicas"] == 3
        (config,) = json.loads(
            millstream(port, "topic", "config", "__consumer_offsets", "min.insync.replicas", "--json").stdout
        )
        assert config["value"] == "2"


def test_a_broker_that_dies_is_reported_and_can_be_started_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data) as (process, port):
        victim = pids(data)[2]
        os.kill(victim, signal.SIGKILL)
        assert process.stderr is not None
        line = process.stderr.readline().decode()
        assert line == f"broker 2 (process {victim}) was killed by SIGKILL\n"
        assert process.poll() is None
        again = start(
            "serve", "--listen", f"127.0.0.1:{port}", "--data", str(data), "--brokers", "3", "--id", "2"
        )
        assert again.stdout is not None
        assert again.stdout.readline().decode().startswith(f"Millstream is ready on 127.0.0.1:{port + 1},")
        assert pids(data)[2] == again.pid
        assert millstream(port, "cluster", "health", "--wait", "20s").returncode == 0
        again.send_signal(signal.SIGTERM)
        assert again.wait(30) == 0
        again.communicate()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 1, "one of them did not end well"


@pytest.mark.parametrize("victim", [None, 2])
def test_brokers_go_on_when_nobody_reads_what_is_said_of_them(tmp_path: Path, victim: int | None) -> None:
    """As with `serve --brokers 2 2>&1 | tee FILE`, where tee was killed."""
    data, port = tmp_path / "data", free_ports(2)
    reader, writer = os.pipe()
    words = ["serve", "--listen", f"127.0.0.1:{port}", "--data", str(data), "--brokers", "2"]
    with subprocess.Popen([*COMMAND, *words], stdout=writer, stderr=writer) as process:
        os.close(writer)
        if victim is not None:
            assert b"is ready" in os.read(reader, 4096)
        os.close(reader)
        try:
            until(lambda: answers("127.0.0.1", port) and answers("127.0.0.1", port + 1), 30, "two brokers")
            found = pids(data)
            if victim is not None:
                os.kill(found.pop(victim), signal.SIGKILL)
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(0.5)
                assert all(map(is_alive, found.values()))
            process.terminate()
            assert process.wait(30) == (0 if victim is None else 1)
            assert (data / "broker-1" / ".kafka_cleanshutdown").exists()
        finally:
            process.kill()


def test_a_start_that_is_refused_leaves_the_files_of_running_brokers_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data, count=2) as (_, port):
        found = pids(data)
        words = ["serve", "--data", str(data), "--brokers", "2"]
        for again in ([*words, "--id", "2"], words):
            process = start(*again, "--listen", f"127.0.0.1:{free_ports(2)}")
            out, err = process.communicate(timeout=60)
            assert (process.returncode, out) == (1, b"")
            assert f"another process works in {data}/broker-" in err.decode()
            assert pids(data) == found
        os.kill(found[2], signal.SIGKILL)
        until(lambda: not is_alive(found[2]), 30, "broker 2 ended")
        assert pids(data) == found
        late = start(*words, "--id", "2", "--listen", f"127.0.0.1:{port}")
        assert late.stdout is not None
        assert late.stdout.readline().decode().startswith("Millstream is ready")
        assert pids(data) == {1: found[1], 2: late.pid}
        late.terminate()
        late.communicate(timeout=60)
        assert pids(data) == {1: found[1]}


def test_log_lines_say_which_broker_wrote_them(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--log-level", "info", count=2) as (process, port):
        controller = json.loads(millstream(port, "cluster", "info", "--json").stdout)["controller"]
        process.terminate()
        lines = process.communicate(timeout=60)[1].decode().splitlines()
    found = [re.match(r"[\d-]+ [\d:,]+ broker (\d) [A-Z]+ (millstream[a-z._]+): ", line) for line in lines]
    written = [(match[2], int(match[1])) for match in found if match is not None]
    assert len(written) == len(lines)
    assert ("millstream.controller.partition_changes", controller) in written


def test_brokers_end_with_the_command_however_it_ends(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data) as (process, _):
        found = pids(data)
        process.kill()
        until(lambda: not any(map(is_alive, found.values())), 30, "the brokers ended")


def test_the_command_may_be_process_1(tmp_path: Path) -> None:
    """As in a container. A broker that found 1 above it took its parent for dead, and ended."""
    if (
        shutil.which("unshare") is None
        or subprocess.run([*CONTAINER, "true"], capture_output=True).returncode
    ):
        pytest.skip("this system makes no processes of their own for this user")
    data, port = tmp_path / "data", free_ports(2)
    words = ["serve", "--listen", f"127.0.0.1:{port}", "--data", str(data), "--brokers", "2"]
    with subprocess.Popen(
        [*CONTAINER, *COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().decode().startswith("Millstream is ready on ")
            first = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
            os.kill(first, signal.SIGTERM)
            out, err = process.communicate(timeout=60)
            assert (process.returncode, out, err) == (0, b"", b"")
        finally:
            process.kill()


def test_ctrl_c_on_a_terminal_reaches_each_broker_once(tmp_path: Path) -> None:
    port = free_ports(2)
    words = ["serve", "--listen", f"127.0.0.1:{port}", "--data", str(tmp_path / "data"), "--brokers", "2"]
    with Terminal(*words, bootstrap="127.0.0.1:1") as terminal:
        terminal.until("Millstream is ready on ")
        os.killpg(terminal.process.pid, signal.SIGINT)  # as a terminal does
        assert terminal.end() == 0
        assert re.search("error|Traceback|ended|killed", terminal.shown) is None


def test_one_that_cannot_start_stops_the_others(tmp_path: Path) -> None:
    port = free_ports(3)
    blocker = subprocess.Popen([sys.executable, "-c", BLOCKER, str(port + 1)], stdout=subprocess.PIPE)
    try:
        assert blocker.stdout is not None
        blocker.stdout.readline()
        begun = time.monotonic()
        process = start(
            "serve", "--listen", f"127.0.0.1:{port}", "--data", str(tmp_path / "data"), "--brokers", "3"
        )
        out, err = process.communicate(timeout=60)
        assert time.monotonic() - begun < 30
        assert (process.returncode, out) == (1, b"")
        assert f"broker 2: 127.0.0.1:{port + 1} is in use by another program" in err.decode()
        assert b"Traceback" not in err
    finally:
        blocker.kill()
        blocker.communicate()


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["--brokers", "0"], 2, "--brokers"),
        (["--brokers", "3", "--id", "4"], 2, "none of the brokers 1 to 3"),
        (["--id", "2"], 2, "goes with --brokers"),
        (["--registry", "etcd://localhost"], 1, "registry"),
        (["--brokers", "2", "--registry", "memory"], 1, "2 brokers need one that they share"),
        (
            ["--registry", "zookeeper://127.0.0.1:1/x", "-o", "registry.session.timeout.ms=500"],
            1,
            "at 127.0.0.1:1 (127.0.0.1:1: Connection refused)",
        ),
    ],
)
def test_what_cannot_be_served(tmp_path: Path, words: list[str], code: int, reason: str) -> None:
    process = start("serve", "--listen", f"127.0.0.1:{free_port()}", *words, cwd=tmp_path)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, b"")
    assert reason in err.decode()
    assert b"Traceback" not in err


def test_a_single_brokers_folder_is_not_taken_for_a_clusters(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("")
    process = start("serve", "--data", str(tmp_path), "--brokers", "2")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "holds the records of a single broker" in err.decode()


def test_a_clusters_folder_is_not_taken_for_a_single_brokers(tmp_path: Path) -> None:
    """A broker alone took each `broker-ID` for a log of a topic that nobody knows, and renamed it."""
    data = tmp_path / "data"
    with serving(data, count=2):
        found = sorted(os.listdir(data))
        for words in ([], ["-o", "node.id=4"]):
            process = start("serve", "--listen", f"127.0.0.1:{free_port()}", "--data", str(data), *words)
            out, err = process.communicate(timeout=60)
            assert (process.returncode, out) == (1, b"")
            assert f"{data} is the folder of a cluster" in err.decode()
            assert sorted(os.listdir(data)) == found
