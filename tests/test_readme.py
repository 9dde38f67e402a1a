"""What README.md shows is run, as it stands there: only the address and the paths are the test's."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream import Admin, Consumer
from tests.processes import BrokerProcess, free_port, free_ports, until

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
TIMEOUT_S = 60


def block(language: str, holds: str) -> str:
    (found,) = (text for kind, text in BLOCKS if kind == language and holds in text)
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    assert block("sh", "serve\n").strip() == ".venv/bin/millstream serve"
    with BrokerProcess(tmp_path_factory.mktemp("readme")) as process:
        yield process


def test_every_block_is_known() -> None:
    shown = [re.sub(r"\s+", " ", text)[:24] for _, text in BLOCKS]
    assert shown == [
        "make demo # a broker, a ",
        ".venv/bin/millstream ser",
        ".venv/bin/millstream top",
        "from millstream import C",
        "from confluent_kafka imp",
        "from millstream.streams ",
        "def test_my_pipeline(mil",
        ".venv/bin/millstream ser",
        ".venv/bin/millstream ser",
    ]


def test_the_make_targets_exist() -> None:
    targets = re.findall(r"(?:^|`)make (\w+)", README, re.MULTILINE)
    made = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {"demo", "test", "setup"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", made, re.MULTILINE), target


def test_the_first_five_minutes(broker: BrokerProcess, tmp_path: Path) -> None:
    program = tmp_path / "millstream"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m millstream.cli.main "$@"\n')
    program.chmod(0o755)
    commands = block("sh", "topic create").replace(".venv/bin/millstream", str(program))
    done = subprocess.run(
        ["sh", "-e", "-c", commands],
        env={**os.environ, "MILLSTREAM_BOOTSTRAP": broker.bootstrap, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    for fruit in ("apple", "pear", "plum"):
        assert fruit in done.stdout
    assert "orders" in done.stdout


def test_our_own_client(broker: BrokerProcess) -> None:
    program = block("python", "from millstream import").replace("localhost:9092", broker.bootstrap)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert "medlar" in done.stdout


@pytest.mark.usefixtures("quick_spark")
@pytest.mark.timeout(400)
def test_the_app(broker: BrokerProcess, tmp_path: Path) -> None:
    """It runs until its total is there, and ends cleanly by Ctrl-C."""
    shown = block("python", "from millstream.streams")
    assert len(shown.splitlines()) <= 10
    program = shown.replace("localhost:9092", broker.bootstrap)
    sent = 'from millstream import Producer\nwith Producer("%s", serializer="json") as producer:\n'
    sent += '    producer.send("orders", {"fruit": "sorb", "kg": 3})\n'
    subprocess.run([sys.executable, "-c", sent % broker.bootstrap], check=True, timeout=TIMEOUT_S)
    app = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        with Admin(broker.bootstrap) as admin:
            until(lambda: app.poll() is not None or "totals" in admin.list_topics(), 200, "the app's topic")
        with Consumer(broker.bootstrap, offset_reset="earliest") as consumer:
            consumer.assign(consumer.partitions_of("totals"))
            until(
                lambda: app.poll() is not None or any(b"sorb" in (it.value or b"") for it in consumer.poll()),
                200,
                "the total",
            )
        assert app.poll() is None, app.communicate()[1]
    finally:
        app.send_signal(signal.SIGINT)
        errors = app.communicate(timeout=TIMEOUT_S)[1]
    assert app.returncode == 0, errors
    assert "run it again to go on from there" in errors


def test_several_brokers(tmp_path: Path) -> None:
    serve, health = block("sh", "--brokers").strip().splitlines()
    me = [sys.executable, "-m", "millstream.cli.main"]
    first = free_ports(3)
    bootstrap = f"127.0.0.1:{first}"
    brokers = subprocess.Popen([*me, *serve.split()[1:], "--listen", bootstrap], cwd=tmp_path)
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            asked = [*me, *health.split()[1:], "--bootstrap", bootstrap]
            done = subprocess.run(asked, capture_output=True, text=True, timeout=TIMEOUT_S)
            if done.returncode == 0:
                break
            assert time.monotonic() < deadline, done.stderr
    finally:
        brokers.terminate()
        assert brokers.wait(TIMEOUT_S) == 0


def test_metrics(tmp_path: Path) -> None:
    serve, scrape = block("sh", "--metrics").strip().splitlines()
    me, port = [sys.executable, "-m", "millstream.cli.main"], str(free_port())
    words = serve.replace("9404", port).split()[1:]
    broker = subprocess.Popen([*me, *words, "--listen", f"127.0.0.1:{free_port()}"], cwd=tmp_path)
    try:

        def scraped() -> str:
            asked = scrape.replace("9404", port).split()
            return subprocess.run(asked, capture_output=True, text=True, timeout=TIMEOUT_S).stdout

        assert "millstream_partitions 0.0" in until(scraped, TIMEOUT_S, "metrics")
    finally:
        broker.terminate()
        assert broker.wait(TIMEOUT_S) == 0


def test_the_client(broker: BrokerProcess) -> None:
    program = block("python", "confluent_kafka").replace("localhost:9092", broker.bootstrap)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    read = [sys.executable, "-m", "millstream.cli.main", "consume", "orders", "-o", "start", "--exit"]
    seen = subprocess.run(
        [*read, "--bootstrap", broker.bootstrap], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert "quince" in seen.stdout


def test_the_fixtures(tmp_path: Path) -> None:
    made = tmp_path / "test_pipeline.py"
    made.write_text(
        "def run_my_pipeline(bootstrap, topic):\n"
        "    from confluent_kafka.admin import AdminClient\n"
        "    listed = AdminClient({'bootstrap.servers': bootstrap}).list_topics(topic, timeout=10)\n"
        "    assert len(listed.topics[topic].partitions) == 2\n\n\n" + block("python", "def test_my_pipeline")
    )
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", str(made)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
