"""`millstream reassign` and other commands while a cluster is not at rest: moves under way, leaders away."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.client.cluster import Cluster as Client
from millstream.deadline import Deadline
from millstream.testing import Cluster
from tests.cli.conftest import CommandLine
from tests.cli.programs import COMMAND, start
from tests.processes import free_port, until


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Whose brokers stay in it for long though they are silent."""
    with Cluster(brokers=3, config={"registry.session.timeout.ms": "20000"}) as cluster:
        yield cluster


@pytest.fixture
def target(cluster: Cluster) -> Iterator[int]:
    """A broker that is not the controller and may be paused."""
    target = next(broker for broker in cluster.members if broker != cluster.health().controller)
    yield target
    cluster[target].resume()


def asked(cluster: Cluster, *words: str) -> subprocess.Popen[bytes]:
    """A command that asks the brokers that are not paused."""
    where = ",".join(member.address for member in cluster.members.values() if not member.is_paused)
    return start(*words, bootstrap=where)


def test_a_broker_that_is_silent_is_named_and_may_be_the_controller(cluster: Cluster) -> None:
    """The cluster counted as healthy, without a controller."""
    controller = cluster.health().controller
    assert controller is not None
    cluster[controller].pause()
    try:
        health = asked(cluster, "cluster", "health", "--json")
        info = asked(cluster, "cluster", "info", "--json", "--timeout", "3s")
        found = json.loads(health.communicate(timeout=30)[0])
        assert health.returncode == 1
        assert (found["healthy"], found["unresponsive_brokers"]) == (False, [controller])
        assert (found["controller"], found["missing_brokers"]) == (controller, [])
        found = json.loads(info.communicate(timeout=30)[0])
        assert found["controller"] == controller
        assert {one["id"] for one in found["brokers"] if one["bytes"] is None} == {controller}
    finally:
        cluster[controller].resume()
    assert cluster.wait_until_healthy().unresponsive_brokers == []


def test_the_doctor_takes_nobody_for_silent_beside_one_that_is(cluster: Cluster, tmp_path: Path) -> None:
    """The first that was asked used up the time of the others."""
    cluster[1].pause()
    try:
        words = ("--data", str(tmp_path), "--listen", f"127.0.0.1:{free_port()}", "-b", cluster[2].address)
        found = json.loads(start("doctor", "--json", *words).communicate(timeout=60)[0])
    finally:
        cluster[1].resume()
    bad = [check["found"] for check in found if check["state"] == "bad"]
    assert [text.startswith(f"{cluster[1].address}: ") for text in bad] == [True], bad


def reassign(cluster: Cluster, *words: str, given: str = "") -> Any:
    where = ",".join(member.address for member in cluster.members.values() if not member.is_paused)
    done = subprocess.run(
        [*COMMAND, "reassign", *words, "--json", "-b", where],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def moves(topic: str, *replicas: int) -> dict[str, Any]:
    return {"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": list(replicas)}]}


def test_a_plan_during_a_move_keeps_the_number_of_replicas(cluster: Cluster, target: int) -> None:
    """Until it has arrived, a partition has the replicas that it leaves, too."""
    one, other = (broker for broker in cluster.members if broker != target)
    topic = cluster.create_topic("moving", 1, assignment={0: [one]})
    cluster[target].pause()  # it cannot copy
    reassign(cluster, "execute", "-", "--yes", given=json.dumps(moves(topic, target)))
    assert [each["removing"] for each in reassign(cluster, "status")] == [[one]]
    words = ("--topic", topic, "--brokers", str(other))
    assert reassign(cluster, "plan", *words) == moves(topic, other)
    reassign(cluster, "execute", *words, "--yes")
    cluster[target].resume()
    until(lambda: reassign(cluster, "status") == [], 30, "the move has arrived")
    assert cluster.call(lambda client, deadline: replicas(client, deadline, topic)) == (other,)


def test_moves_that_outlast_the_time_out_go_on_and_all_results_are_told(
    cluster: Cluster, target: int
) -> None:
    """A broker that was well was said not to answer, and refusals were not told."""
    one = next(broker for broker in cluster.members if broker != target)
    topic = cluster.create_topic("slowly", 2, assignment={0: [one], 1: [one]})
    plan = moves(topic, target)
    plan["partitions"] += [{"topic": topic, "partition": 1, "replicas": [one, 9]}]
    cluster[target].pause()  # it cannot copy
    words = ("reassign", "execute", "-", "--yes")
    begun = asked(cluster, *words)
    out, _ = begun.communicate(json.dumps(moves(topic, target)).encode(), timeout=60)
    assert (begun.returncode, out.decode().splitlines()[1].split()) == (0, [topic, "0", "begun"])
    waiting = [asked(cluster, *words, "--wait", "--timeout", "6s", *more) for more in ((), ("--json",))]
    (text, note), (document, error) = (
        each.communicate(json.dumps(plan).encode(), timeout=60) for each in waiting
    )
    assert [each.returncode for each in waiting] == [1, 1]
    rows = [line.split(maxsplit=2) for line in text.decode().splitlines()[1:]]
    assert rows == [[topic, "0", "begun"], [topic, "1", "there is no live broker 9"]]
    assert "--timeout has passed with 1 partition still on the way. The moves go on" in note.decode()
    assert [each["error"] for each in json.loads(document)] == [None, "InvalidReplicaAssignment"]
    assert "1 partition still on the way" in json.loads(error)["message"]
    assert [each["adding"] for each in reassign(cluster, "status")] == [[target]]
    cluster[target].resume()
    until(lambda: reassign(cluster, "status") == [], 30, "the move has arrived")


def test_a_rate_holds_on_for_moves_that_outlast_the_time_out(cluster: Cluster) -> None:
    topic = cluster.create_topic("held", 1, assignment={0: [1]})
    wrote = start("produce", topic, bootstrap=cluster.bootstrap)
    assert wrote.communicate(b"x" * 500_000 + b"\n", timeout=60)[1] == b""
    words = ("--yes", "--wait", "--timeout", "3s", "--throttle", "1KB")
    waiting = asked(cluster, "reassign", "execute", "-", *words)
    _, err = waiting.communicate(json.dumps(moves(topic, 2)).encode(), timeout=60)
    assert waiting.returncode == 1
    assert "still on the way" in err.decode()
    assert "The rate holds until `millstream reassign unthrottle`" in err.decode()
    assert reassign(cluster, "unthrottle") == [topic]
    until(lambda: reassign(cluster, "status") == [], 60, "the move has arrived")


def test_a_partition_that_is_being_moved_is_healthy(cluster: Cluster, target: int, tmp_path: Path) -> None:
    """What it had before is in sync: nothing is missing. It counted as under-replicated."""
    one, other = (broker for broker in cluster.members if broker != target)
    topic = cluster.create_topic("healthy", 1, assignment={0: [one, other]})
    needs_two = {"min.insync.replicas": "2"}
    strict = cluster.create_topic("strict", 1, assignment={0: [one]}, configs=needs_two)
    cluster[target].pause()  # it cannot copy
    reassign(cluster, "execute", "-", "--yes", given=json.dumps(moves(topic, one, target)))
    found = cluster.health()
    assert found.unresponsive_brokers == [target]
    assert found.under_replicated == {}
    words = ("--data", str(tmp_path), "--listen", f"127.0.0.1:{free_port()}", "-b", cluster[one].address)
    checks = json.loads(start("doctor", "--json", *words).communicate(timeout=60)[0])
    assert [check["state"] for check in checks if check["check"] == "partitions"] == ["good"]
    reassign(cluster, "execute", "-", "--yes", given=json.dumps(moves(strict, one, target)))
    refused = asked(cluster, "produce", strict, "--timeout", "2s")
    err = refused.communicate(b"in vain\n", timeout=30)[1].decode()
    assert (refused.returncode, "replicas" in err) == (1, True), err
    assert [key.topic for key in cluster.health().under_min_isr] == [strict], "brokers count those added, too"
    cluster[target].resume()
    until(lambda: reassign(cluster, "status") == [], 30, "the moves have arrived")


async def replicas(client: Client, deadline: Deadline, topic: str) -> tuple[int, ...]:
    metadata = await client.refresh([topic], deadline)
    return metadata.topic(topic).partitions[0].replicas


def test_who_is_away_is_named_by_plans_and_by_the_doctor(cluster: Cluster, tmp_path: Path) -> None:
    topic = cluster.create_topic("away", 1, assignment={0: [3]})
    cluster[3].kill()
    cluster.wait_for_brokers({1, 2})
    try:
        plan = ("reassign", "plan", "--json", "--topic", topic)
        planned = start(*plan, bootstrap=cluster[1].address)
        out, err = planned.communicate(timeout=60)
        assert [entry["replicas"] for entry in json.loads(out)["partitions"]] in ([[1]], [[2]])
        assert err.decode() == "Broker 3 is away: its replicas are planned onto others.\n"
        named = start(*plan, "--brokers", "1,2", bootstrap=cluster[1].address)
        assert named.communicate(timeout=60)[1] == b"", "who names brokers knows it"
        words = ("--data", str(tmp_path), "--listen", f"127.0.0.1:{free_port()}", "-b", cluster[1].address)
        checks = json.loads(start("doctor", "--json", *words).communicate(timeout=60)[0])
        found = {check["check"]: check for check in checks}
        assert found["partitions"]["advice"] == "Start broker 3."
        assert found["missing brokers"]["found"].endswith(": 3")
    finally:
        cluster.start_broker(3)
    cluster.wait_until_healthy()


def test_a_rate_is_taken_back_where_nothing_moves(millstream: CommandLine, tmp_path: Path) -> None:
    millstream("topic", "create", "refused")
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(moves("refused", 1, 9)))
    refused = millstream.run("reassign", "execute", str(plan), "--throttle", "1MB", "--yes")
    assert refused.code == 1
    assert "unthrottle" not in refused.err
    assert "throttled" not in millstream("topic", "config", "refused").text
    assert millstream("reassign", "unthrottle", "--json").json == []


def test_a_reader_waits_for_a_leader_and_a_writer_says_that_there_is_none(cluster: Cluster) -> None:
    topic = cluster.create_topic("led-by-one", 1, assignment={0: [3]})
    wrote = subprocess.run(
        [*COMMAND, "produce", topic, "-b", cluster.bootstrap],
        input=b"kept\n",
        capture_output=True,
        timeout=60,
    )
    assert wrote.returncode == 0, wrote.stderr
    cluster[3].kill()
    cluster.wait_for_brokers({1, 2})
    words = ("consume", topic, "-o", "start", "--exit", "-f", "%v", "--timeout", "60s")
    reading = start(*words, bootstrap=cluster[1].address)
    time.sleep(1.0)
    assert reading.poll() is None, reading.communicate()[1]
    unknown = start(*words, "-p", "7", bootstrap=cluster[1].address)
    _, err = unknown.communicate(timeout=30)
    assert "topic led-by-one has partitions 0 to 0, not 7" in err.decode()
    writing = start("produce", topic, "--timeout", "1s", bootstrap=cluster[1].address)
    _, err = writing.communicate(b"in vain\n", timeout=30)
    assert writing.returncode == 1
    assert "the last error was: partition led-by-one-0 has no leader at the moment" in err.decode()
    cluster.start_broker(3)
    out, err = reading.communicate(timeout=60)
    assert (reading.returncode, out) == (0, b"kept"), err
