"""The launcher of Apache Kafka: what it says when it cannot, and one real broker with a real tool."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from bench.apache_kafka import KAFKA_VERSION, KafkaBroker, KafkaUnavailable, is_available, jars, run_tool
from bench.wire import Connection, cluster_is_ready

from tests.processes import until


def test_missing_programs_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_KAFKA_LIBS", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not is_available()
    with pytest.raises(KafkaUnavailable, match=r"`java` is missing: install .* or let MILLSTREAM_KAFKA_LIBS"):
        jars()


def test_a_folder_of_jars_can_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_KAFKA_LIBS", str(tmp_path))
    (tmp_path / f"kafka-clients-{KAFKA_VERSION}.jar").touch()
    assert jars() == tmp_path


@pytest.mark.java
def test_broker_starts_serves_a_tool_and_stops_cleanly(tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path, heap="512m")
    with broker:
        pid = broker.pid
        with Connection(broker.port) as connection:
            connection.create_topic("t", 3, {"retention.ms": "1000000"})
            assert connection.leaders("t") == {0: 1, 1: 1, 2: 1}
        done = run_tool(
            "org.apache.kafka.tools.ConsoleProducer",
            ["--bootstrap-server", broker.bootstrap, "--topic", "t"],
            stdin="one\ntwo\n",
            check=True,
        )
        assert done.returncode == 0
        with Connection(broker.port) as connection:
            assert sum(connection.end_offsets("t", 3)) == 2
            connection.set_topic_config("t", "retention.ms", "2000000")
            connection.delete_topics(["t"])
            until(lambda: connection.leaders("t") == {}, 30, "the broker has heard that the topic is gone")
    assert not psutil.pid_exists(pid)
    assert not cluster_is_ready(broker.port)
    assert (broker.data / "meta.properties").exists()
