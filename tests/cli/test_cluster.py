"""`millstream cluster|reassign|elect` on one broker; with several see tests/failover."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine
from tests.cli.programs import start
from tests.processes import free_port


def test_info_shows_the_broker(millstream: CommandLine) -> None:
    millstream("topic", "create", "info-a", "-p", "3")
    millstream("produce", "info-a", given=b"some bytes\n")
    found = millstream("cluster", "info", "--json").json
    (broker,) = found["brokers"]
    assert found["controller"] == broker["id"]
    assert broker["controller"]
    assert broker["leads"] == broker["holds"] == found["partitions"] >= 3
    assert broker["bytes"] > 0
    text = millstream("cluster", "info").text
    assert found["id"] in text
    assert broker["address"] in text


def test_one_broker_is_healthy(millstream: CommandLine) -> None:
    millstream("topic", "create", "health-a", "-p", "2", "-c", "min.insync.replicas=1")
    found = millstream("cluster", "health", "--json").json
    assert found["healthy"]
    assert found["offline"] == found["under_min_isr"] == found["under_replicated"] == []
    assert millstream("cluster", "health").text.startswith("healthy: 1 broker, ")
    millstream("topic", "create", "health-b", "-p", "1", "-c", "min.insync.replicas=2")
    assert millstream("cluster", "health").code == 0, "its only replica is enough: the broker takes acks=all"


def test_health_waits_for_a_cluster_that_does_not_answer_yet(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    waiting = start("cluster", "health", "--wait", "30s", bootstrap=address)
    time.sleep(1.0)
    assert waiting.poll() is None
    serving = start("serve", "--listen", address, "--data", str(tmp_path))
    try:
        out, err = waiting.communicate(timeout=60)
        assert (waiting.returncode, err) == (0, b"")
        assert out.startswith(b"healthy: 1 broker")
    finally:
        serving.kill()
        serving.communicate(timeout=20)
    in_vain = start("cluster", "health", "--wait", "1s", bootstrap=address)
    out, err = in_vain.communicate(timeout=30)
    assert (in_vain.returncode, out) == (1, b"")
    assert address.encode() in err


def test_watch_prints_changes_and_goes_on_without_a_broker() -> None:
    process = start("cluster", "watch", "--json", "--interval", "100ms", "--timeout", "500ms")
    try:
        assert process.stdout is not None
        line = json.loads(process.stdout.readline())
        assert line["healthy"] is False
        assert "127.0.0.1:1" in line["error"]
    finally:
        process.kill()
        process.communicate(timeout=20)


def test_an_even_cluster_has_nothing_to_plan(millstream: CommandLine) -> None:
    millstream("topic", "create", "plan-a", "-p", "3")
    assert millstream("reassign", "plan", "--topic", "plan-a", "--json").json == {
        "version": 1,
        "partitions": [],
    }
    assert "nothing has to be moved" in millstream("reassign", "plan", "--topic", "plan-a").err
    refused = millstream.run("reassign", "plan", "--brokers", "1,7")
    assert refused.code == 1
    assert "there is no broker 7" in refused.err
    assert millstream.run("reassign", "plan", "--brokers", "one").code == 2
    twice = millstream.run("reassign", "plan", "--brokers", "1,1", "--topic", "plan-a")
    assert (twice.code, "broker 1 is named more than once" in twice.err) == (2, True)
    too_many = millstream.run("reassign", "plan", "--replicas", "2", "--topic", "plan-a")
    assert too_many.code == 1
    assert (
        "plan-a-0 is to have 2 replicas on 1 broker. Name more --brokers, or fewer --replicas" in too_many.err
    )


def entry(**changes: object) -> dict[str, object]:
    return {"topic": "plan-c", "partition": 0, "replicas": [1], **changes}


def without(key: str) -> dict[str, object]:
    return {name: value for name, value in entry().items() if name != key}


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        (None, 'it has no list "partitions"'),
        ([without("topic")], 'partitions[0]: it has no "topic"'),
        ([without("partition")], 'partitions[0]: it has no "partition"'),
        ([entry(partition=1), without("replicas")], 'partitions[1]: it has no "replicas"'),
        ([entry(), entry(partition=1), entry()], "partitions[2]: plan-c-0 is listed before"),
        (["plan-c"], 'partitions[0]: "plan-c" is not an object'),
        ([entry(topic=7)], 'partitions[0]: "topic" is 7, not a string'),
        ([entry(partition=0.0)], 'partitions[0]: "partition" is 0.0, not a number'),
        ([entry(partition="0")], 'partitions[0]: "partition" is "0", not a number'),
        ([entry(partition=2**31)], 'partitions[0]: "partition" is 2147483648, not a number'),
        ([entry(replicas="1")], 'partitions[0]: "replicas" is "1", not a list of brokers'),
        ([entry(replicas=[1.0])], 'partitions[0]: "replicas" is [1.0], not a list of brokers'),
        ([entry(replicas=[True])], 'partitions[0]: "replicas" is [true], not a list of brokers'),
        ([entry(log_dirs=["/data"])], 'partitions[0]: "log_dirs" is ["/data"], but brokers choose'),
        ([entry(log_dirs="any")], 'partitions[0]: "log_dirs" is "any", but brokers choose'),
        ([entry(log_dirs=1)], 'partitions[0]: "log_dirs" is 1, but brokers choose'),
    ],
)
def test_a_plan_that_is_none_is_refused_with_its_entry(
    millstream: CommandLine, partitions: object, message: str
) -> None:
    """One entry of two was dropped, digits of a text were brokers, and log dirs had no effect."""
    plan = {"version": 1} if partitions is None else {"version": 1, "partitions": partitions}
    refused = millstream.run("reassign", "execute", "-", "--yes", given=json.dumps(plan).encode())
    assert (refused.code, refused.out) == (1, b"")
    assert "is no plan" in refused.err
    assert message in refused.err


def test_a_plan_may_leave_the_log_dirs_to_the_brokers(millstream: CommandLine) -> None:
    millstream("topic", "create", "plan-d")
    plan = {"version": 1, "partitions": [entry(topic="plan-d", log_dirs=["any"])]}
    moved = millstream("reassign", "execute", "-", "--yes", given=json.dumps(plan).encode())
    assert moved.text.splitlines()[1].split() == ["plan-d", "0", "done"]
    for text in ('{"version": 2, "partitions": []}', "[]", "{"):
        assert millstream.run("reassign", "execute", "-", "--yes", given=text.encode()).code == 1


def test_a_plan_for_topics_that_are_not_there_is_an_error(millstream: CommandLine) -> None:
    """It was said that nothing has to be moved."""
    millstream("topic", "create", "plan-b")
    for words in (["plan"], ["plan", "--json"], ["execute", "--yes"]):
        refused = millstream.run("reassign", *words, "--topic", "plan-no*", "--topic", "nosuch")
        assert (refused.code, refused.out) == (1, b"")
        assert "no topic matches plan-no*, nosuch" in refused.err
    millstream("reassign", "plan", "--topic", "nosuch", "--topic", "plan-b")


def test_an_unclean_election_needs_names_and_a_yes(millstream: CommandLine) -> None:
    assert millstream.run("elect", "--unclean").code == 2
    refused = millstream.run("elect", "orders:0", "--unclean")
    assert refused.code == 2
    assert "--yes" in refused.err


def test_an_election_that_is_not_needed_is_told_from_one_that_was_held(millstream: CommandLine) -> None:
    millstream("topic", "create", "elect-a")
    led = millstream("elect", "elect-a:0")
    assert led.text.splitlines()[1].split(maxsplit=2) == ["elect-a", "0", "not needed"]
    assert millstream("elect", "elect-a", "--json").json == [
        {"topic": "elect-a", "partition": 0, "error": None, "message": None}
    ]
    assert millstream.run("elect", "elect-a:1").code == 1
    for name in ("elect-a:x", "elect-a:", ":0", "elect-a:99999999999"):
        refused = millstream.run("elect", name)
        assert (refused.code, "TOPIC:NUMBER" in refused.err) == (2, True), name


def test_moves_of_a_topic_that_is_not_there_cannot_be_cancelled(millstream: CommandLine) -> None:
    """It was said that no partition is on its way."""
    millstream("topic", "create", "cancel-a")
    refused = millstream.run("reassign", "cancel", "cancel-a", "nosuch")
    assert (refused.code, refused.out) == (1, b"")
    assert "topic nosuch does not exist" in refused.err
    for words in ((), ("--yes",)):
        told = millstream("reassign", "cancel", "cancel-a", *words).err
        assert "No partition of cancel-a is on its way" in told


def test_a_broker_that_cannot_be_unregistered_is_named_once(millstream: CommandLine) -> None:
    refused = millstream.run("cluster", "unregister", "5")
    assert (refused.code, refused.err.count("broker 5")) == (1, 1)
