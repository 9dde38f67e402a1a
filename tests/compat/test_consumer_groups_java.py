"""The consumer protocol (KIP-848) with Java's consumers, through Apache Kafka's own tools.

Every run starts a virtual machine: there is one test, which asks for a lot.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.compat.members import Member, send
from tests.compat.test_consumer_groups_confluent import NEW
from tests.compat.test_groups_java import TIMEOUT_S, VerifiableConsumer, groups, tool
from tests.compat.topics import create_topic
from tests.conftest import Name
from tests.processes import until

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("quick_java")]


def test_java_shares_with_others_and_admins_see_it(
    consumer_bootstrap: str, new_name: Name, tmp_path: Path
) -> None:
    topic, group = create_topic(consumer_bootstrap, new_name("java"), 4), new_name("group")
    java = VerifiableConsumer(
        consumer_bootstrap,
        group,
        topic,
        tmp_path / "verifiable",
        *("--group-protocol", "consumer", "--group-remote-assignor", "uniform"),
        *("--reset-policy", "earliest"),
        settings="metadata.max.age.ms=2000\n",
    )
    try:
        until(lambda: java.assigned == 4, TIMEOUT_S, "all partitions")
        with Member(consumer_bootstrap, group, [topic], **NEW) as other:
            until(lambda: (java.assigned, len(other.assigned)) == (2, 2), TIMEOUT_S, "half each")
            send(consumer_bootstrap, topic, [b"%d" % number for number in range(400)], 4)
            until(lambda: java.consumed + len(other.values) >= 400, TIMEOUT_S, "all records")
            assert (java.consumed, len(other.values)) == (200, 200)
            lines = groups(consumer_bootstrap, "--describe", "--group", group, "--members", "--verbose")
            head = lines[0]
            found = {line[head.index("CLIENT-ID")]: line for line in lines[1:]}
            assert {line[head.index("#PARTITIONS")] for line in found.values()} == {"2"}, lines
            assert "rdkafka" in found
        until(lambda: java.assigned == 4, TIMEOUT_S, "all partitions after one left")
        assert all(event.get("success", True) for event in java.events), java.events
    finally:
        java.end(signal.SIGTERM)
    assert java.events[-1]["name"] == "shutdown_complete"
    # a console consumer goes on where the group is
    send(consumer_bootstrap, topic, [b"%d" % number for number in range(20)], 4)
    printed = tool(
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", consumer_bootstrap, "--topic", topic, "--group", group),
        *("--command-property", "group.protocol=consumer"),
        *("--timeout-ms", "15000", "--max-messages", "20"),
    )
    assert sorted(int(line) for line in printed.splitlines()) == list(range(20))
