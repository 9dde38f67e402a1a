"""The command line as a person sees it, and how it ends in the middle of things."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time

import pytest

from millstream.testing import Broker
from tests.cli.conftest import CommandLine
from tests.cli.programs import Terminal, start
from tests.conftest import Name


def test_tables_are_drawn_for_a_person(cli_broker: Broker, millstream: CommandLine, new_name: Name) -> None:
    name = new_name("drawn")
    millstream("topic", "create", name, "-p", "2")
    with Terminal("topic", "list", name, bootstrap=cli_broker.bootstrap) as terminal:
        assert terminal.end() == 0
        lines = [line.split() for line in terminal.shown.splitlines() if line.strip()]
    assert lines[0] == ["topic", "partitions", "replicas"]
    assert set(lines[1][0]) == {"─"}
    assert lines[2] == [name, "2", "1"]


def test_typing_records(cli_broker: Broker, millstream: CommandLine, new_name: Name) -> None:
    name = new_name("typed")
    millstream("topic", "create", name)
    with Terminal("produce", name, bootstrap=cli_broker.bootstrap) as terminal:
        terminal.until("Type records")
        terminal.type("first\n")
        while millstream("offsets", name, "--json").json[0]["end"] == 0:
            time.sleep(0.01)
        terminal.type("second\n\x04")
        assert terminal.end() == 0
        assert f"Wrote 2 records to {name} (0: 0-1)." in terminal.shown
    assert millstream("consume", name, "--exit", "-f", "value").out == b"first\nsecond\n"


def test_following_a_topic_until_ctrl_c(cli_broker: Broker, millstream: CommandLine, new_name: Name) -> None:
    name = new_name("followed")
    millstream("topic", "create", name)
    millstream("produce", name, "-k", "k", given=b"before\n")
    with Terminal("consume", name, "-o", "start", bootstrap=cli_broker.bootstrap) as terminal:
        assert "0:0 20" in terminal.until("k = before")
        millstream("produce", name, "-H", "h=1", given=b"after\n")
        terminal.until("Z after  [h=1]")
        terminal.interrupt()
        assert terminal.end() == 0
        assert "Traceback" not in terminal.shown


def test_ctrl_c_while_waiting_for_lines(cli_broker: Broker, new_name: Name) -> None:
    with Terminal("produce", new_name("stopped"), bootstrap=cli_broker.bootstrap) as terminal:
        terminal.until("Type records")
        terminal.interrupt()
        assert terminal.end() == 130
        assert "Traceback" not in terminal.shown


def test_deleting_asks(cli_broker: Broker, millstream: CommandLine, new_name: Name) -> None:
    name = new_name("asked")
    millstream("topic", "create", name)
    with Terminal("topic", "delete", name, bootstrap=cli_broker.bootstrap) as terminal:
        terminal.until(f"Delete 1 topic ({name})? [y/N]:")
        terminal.type("n\n")
        assert terminal.end() == 130
    assert name in millstream("topic", "list").text
    with Terminal("topic", "delete", name, bootstrap=cli_broker.bootstrap) as terminal:
        terminal.until("[y/N]:")
        terminal.type("y\n")
        assert terminal.end() == 0
        assert f"Topic {name} deleted." in terminal.shown


def test_errors_are_one_sentence(cli_broker: Broker) -> None:
    with Terminal("topic", "list", "-b", "127.0.0.1:1", bootstrap=cli_broker.bootstrap) as terminal:
        assert terminal.end() == 1
        assert terminal.shown.startswith("error: cannot connect to 127.0.0.1:1")
        assert len(terminal.shown.splitlines()) == 1


def test_a_reader_that_leaves_ends_consume(
    cli_broker: Broker, millstream: CommandLine, new_name: Name
) -> None:
    """`millstream consume … | head -1`."""
    name = new_name("piped")
    millstream("produce", name, given=b"".join(b"%d\n" % n for n in range(100_000)))
    with start("consume", name, "-o", "start", "-f", "value", bootstrap=cli_broker.bootstrap) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"0\n"
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr.read() == b""


def test_records_reach_a_pipe_as_they_come(
    cli_broker: Broker, millstream: CommandLine, new_name: Name
) -> None:
    name = new_name("stream")
    millstream("topic", "create", name)
    consumer = start("consume", name, "-o", "start", "-f", "value", bootstrap=cli_broker.bootstrap)
    producer = start("produce", name, bootstrap=cli_broker.bootstrap)
    assert consumer.stdout is not None
    assert producer.stdin is not None
    for number in range(5):
        producer.stdin.write(b"%d\n" % number)
        producer.stdin.flush()
        assert consumer.stdout.readline() == b"%d\n" % number
    out, err = producer.communicate(timeout=30)
    assert (producer.returncode, out, err) == (0, b"", b"")
    consumer.send_signal(signal.SIGINT)
    out, err = consumer.communicate(timeout=30)
    assert (consumer.returncode, out, err) == (0, b"", b"")


def test_a_progress_bar_only_for_a_person() -> None:
    """Long work shows how far it is, on stderr, if that is a terminal."""
    code = (
        "import time\n"
        "from millstream.cli.progress import Progress\n"
        "with Progress('reading', 10, 'records') as progress:\n"
        "    for _ in range(10):\n"
        "        time.sleep(0.1)\n"
        "        progress.advance(1)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    with Terminal(bootstrap="-", command=command) as terminal:
        terminal.until("reading")
        assert terminal.end() == 0
        assert "records" in terminal.shown
        assert "/10" in terminal.shown


@pytest.mark.parametrize(
    "words",
    [["produce", "-n", "8000", "-r", "8000"], ["latency", "-n", "800", "-r", "800"]],
    ids=lambda w: w[0],
)
def test_perf_shows_a_live_line_to_a_person(
    cli_broker: Broker, millstream: CommandLine, new_name: Name, words: list[str]
) -> None:
    name = new_name("live")
    millstream("topic", "create", name)
    kind, *options = words
    with Terminal("perf", kind, name, *options, bootstrap=cli_broker.bootstrap) as terminal:
        assert terminal.end() == 0
        live, _, summary = terminal.shown.rpartition("\r")
    assert re.search(r"\r[\d,]+ records  [\d,]+/s  [\d,.]+ MB/s  p50 [\d.]+ ms  p99 [\d.]+ ms", live)
    assert "p50" in summary
