"""Clean stops, rolling restarts and growth, under load: nothing lost, and no error at the clients."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from millstream.testing import Cluster
from tests.failover.load import JavaWriter, Reader, Writer, check, is_java, read_all

PARTITIONS = 6
SAFE = {"min.insync.replicas": "2"}


def command(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "millstream.cli.main", *words, "-b", cluster.bootstrap]
    return subprocess.run(program, capture_output=True, text=True, timeout=120)


def test_a_clean_stop_hands_over_first(cluster: Cluster) -> None:
    """No error reaches the application, and the pause is short."""
    topic = cluster.create_topic("t", PARTITIONS, replication_factor=3, configs=SAFE)
    with Writer(cluster.bootstrap, topic) as writer, Reader(cluster.bootstrap, topic, "g") as reader:
        writer.wait_for(200)
        leader = cluster.leader(topic)
        cluster.stop_broker(leader)
        writer.wait_for(200)
        assert writer.longest_pause_s < 5, "no session's time; the bar is 200 ms in bench/failover.py"
        cluster.start_broker(leader)
        cluster.wait_until_healthy()
        writer.wait_for(100)
        writer.stop()
        reader.wait_for(set(writer.acknowledged))
        assert reader.errors == []
        assert max(reader.read.values()) == 1
    check(read_all(cluster.bootstrap, topic, PARTITIONS), writer)


@pytest.mark.java
def test_a_rolling_restart_goes_unnoticed(cluster: Cluster) -> None:
    topic = cluster.create_topic("t", PARTITIONS, replication_factor=3, configs=SAFE)
    with (
        Writer(cluster.bootstrap, topic) as writer,
        Reader(cluster.bootstrap, topic, "g") as reader,
        JavaWriter(cluster.bootstrap, topic) as java,
    ):
        java.wait_for(20)
        writer.wait_for(200)
        for broker_id in (1, 2, 3):
            cluster.stop_broker(broker_id)
            writer.wait_for(50)
            cluster.start_broker(broker_id)
            cluster.wait_until_healthy()
        writer.wait_for(200)
        java.wait_for(20)
        writer.stop()
        java.stop()
        assert java.failed == []
        reader.wait_for(set(writer.acknowledged) | java.acknowledged)
        assert reader.errors == []
    check(read_all(cluster.bootstrap, topic, PARTITIONS), writer, others=is_java)


def test_three_brokers_become_five_under_load(cluster: Cluster) -> None:
    """New brokers hold nothing until partitions are moved to them; data and leaders are even then."""
    topic = cluster.create_topic("t", 15, replication_factor=3, configs=SAFE)
    with Writer(cluster.bootstrap, topic) as writer, Reader(cluster.bootstrap, topic, "g") as reader:
        writer.wait_for(300)
        for _ in range(2):
            cluster.add_broker()
        cluster.wait_for_brokers({1, 2, 3, 4, 5})
        plan = command(cluster, "reassign", "plan", "--json")
        assert plan.returncode == 0, plan.stderr
        assert len(json.loads(plan.stdout)["partitions"]) >= 10
        moved = command(cluster, "reassign", "execute", "--wait", "--yes", "--timeout", "90s", "--json")
        assert moved.returncode == 0, moved.stderr + moved.stdout
        assert all(each["error"] is None for each in json.loads(moved.stdout))
        assert json.loads(command(cluster, "reassign", "status", "--json").stdout) == []
        cluster.wait_until_healthy()
        elected = command(cluster, "elect", "--json")
        assert elected.returncode == 0, elected.stderr + elected.stdout
        writer.wait_for(200)
        writer.stop()
        reader.wait_for(set(writer.acknowledged))
    info = json.loads(command(cluster, "cluster", "info", "--json").stdout)
    described = json.loads(command(cluster, "topic", "describe", topic, "--json").stdout)[0]["partitions"]
    holds = Counter(broker for part in described for broker in part["replicas"])
    leads = Counter(part["leader"] for part in described)
    assert [holds[broker] for broker in range(1, 6)] == [9] * 5
    assert [leads[broker] for broker in range(1, 6)] == [3] * 5
    assert [broker["id"] for broker in info["brokers"]] == [1, 2, 3, 4, 5]
    check(read_all(cluster.bootstrap, topic, 15), writer)
    assert command(cluster, "reassign", "plan", "--topic", topic, "--json").stdout.strip() == json.dumps(
        {"version": 1, "partitions": []}
    )


def test_a_cancelled_move_leaves_partitions_where_they_were(cluster: Cluster) -> None:
    target = next(broker for broker in (1, 2, 3) if broker != cluster.health().controller)
    one, other = (broker for broker in (1, 2, 3) if broker != target)
    topic = cluster.create_topic("t", 2, assignment={0: [one, other], 1: [other, one]})
    cluster[target].pause()  # it cannot copy
    plan = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [target, one]}]}
    where = ["-b", f"{cluster[one].address},{cluster[other].address}"]
    program = [sys.executable, "-m", "millstream.cli.main", "reassign"]

    def reassign(*words: str, given: str = "") -> list[dict[str, object]]:
        done = subprocess.run(
            [*program, *words, "--json", *where], input=given, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        answer: list[dict[str, object]] = json.loads(done.stdout)
        return answer

    reassign("execute", "-", "--yes", given=json.dumps(plan))
    (moving,) = reassign("status")
    assert (moving["topic"], moving["partition"], moving["adding"]) == (topic, 0, [target])
    reassign("cancel")
    assert reassign("status") == []
    cluster[target].resume()
    described = json.loads(command(cluster, "topic", "describe", topic, "--json").stdout)[0]["partitions"]
    assert described[0]["replicas"] == [one, other]
    assert described[1]["replicas"] == [other, one]


def test_a_move_is_held_to_a_rate_until_it_has_arrived(cluster: Cluster, tmp_path: Path) -> None:
    topic = cluster.create_topic("t", 1, assignment={0: [1, 2]})
    produced = subprocess.run(
        [sys.executable, "-m", "millstream.cli.main", "produce", topic, "-b", cluster.bootstrap],
        input=b"\n".join([b"x" * 100_000] * 30),
        capture_output=True,
        timeout=60,
    )
    assert produced.returncode == 0, produced.stderr
    plan = tmp_path / "plan.json"
    moves = [{"topic": topic, "partition": 0, "replicas": [1, 3]}]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    words = ("reassign", "execute", str(plan), "--yes", "--throttle", "1MB", "--timeout", "60s")
    begun = time.monotonic()
    moved = command(cluster, *words, "--wait", "--json")
    assert moved.returncode == 0, moved.stderr
    assert time.monotonic() - begun > 1.5
    assert "throttled" not in command(cluster, "topic", "config", topic).stdout
    moves[0]["replicas"] = [1, 2]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    held = command(cluster, *words)
    assert (held.returncode, "unthrottle" in held.stderr) == (0, True)
    configs = command(cluster, "topic", "config", topic, "--json").stdout
    assert '"0:2"' in configs
    let_go = command(cluster, "reassign", "unthrottle", "--json")
    assert json.loads(let_go.stdout) == [topic]
    assert '"0:2"' not in command(cluster, "topic", "config", topic, "--json").stdout
    assert command(cluster, "reassign", "execute", str(plan), "--throttle", "fast").returncode == 2


def test_health_of_a_cluster_is_an_exit_code(cluster: Cluster) -> None:
    cluster.create_topic("t", 3, replication_factor=3, configs={"min.insync.replicas": "3"})
    cluster.create_topic("alone", 1, assignment={0: [2]})
    assert command(cluster, "cluster", "health", "--wait", "20s").returncode == 0
    cluster[2].kill()
    cluster.wait_until(lambda health: health.brokers == [1, 3])
    found = command(cluster, "cluster", "health", "--json")
    assert found.returncode == 1
    document = json.loads(found.stdout)
    assert document["missing_brokers"] == [2]
    assert [each["topic"] for each in document["offline"]] == ["alone"]
    assert {each["topic"] for each in document["under_replicated"]} == {"alone", "t"}
    under_min = {each["topic"]: each for each in document["under_min_isr"]}
    assert sorted(under_min["t"]["replicas"]) == [1, 2, 3]
    shown = command(cluster, "cluster", "health", "--wait", "300ms")
    assert shown.returncode == 1
    assert shown.stdout.startswith("unhealthy: brokers missing: 2; 1 offline; ")
    assert "under min ISR" in shown.stdout
    cluster.start_broker(2)
    assert command(cluster, "cluster", "health", "--wait", "30s").returncode == 0
