"""Groups of Java's consumers, through Apache Kafka's own tools.

Every run starts a virtual machine: the tests are few, and each asks for a lot.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.apache_kafka import TOOL_JVM, java_command, run_tool

from tests.compat.members import send
from tests.compat.topics import create_topic
from tests.conftest import Name
from tests.processes import until

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("quick_java")]

TOOLS = "org.apache.kafka.tools."
TIMEOUT_S = 60.0


def tool(name: str, *words: str) -> str:
    """One run of a tool; its standard output."""
    done = run_tool(TOOLS + name, list(words), timeout_seconds=TIMEOUT_S)
    printed = done.stdout.decode()
    assert done.returncode == 0, f"{name} {words}: {printed}\n{done.stderr.decode()}"
    return printed


def groups(bootstrap: str, *words: str) -> list[list[str]]:
    """What the group command prints, line by line, in words."""
    printed = tool("consumer.group.ConsumerGroupCommand", "--bootstrap-server", bootstrap, *words)
    return [line.split() for line in printed.splitlines() if line.strip()]


class VerifiableConsumer:
    """Kafka's consumer for system tests, which prints all that happens to it as JSON."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        log: Path,
        *words: str,
        settings: str = "heartbeat.interval.ms=300\nmetadata.max.age.ms=2000\n",
    ) -> None:
        self.log = log
        config = log.with_suffix(".properties")
        config.write_text(settings)
        arguments = ["--bootstrap-server", bootstrap, "--topic", topic, "--group-id", group, *words]
        arguments += ["--command-config", str(config)]
        command = java_command(TOOLS + "VerifiableConsumer", arguments, heap="128m", jvm_options=TOOL_JVM)
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    @property
    def assigned(self) -> int:
        """How many partitions it has, as far as it says."""
        held: set[tuple[str, int]] = set()
        for event in self.events:
            if event["name"] in ("partitions_assigned", "partitions_revoked"):
                named = {(each["topic"], each["partition"]) for each in event["partitions"]}
                held = held | named if event["name"] == "partitions_assigned" else held - named
        return len(held)

    @property
    def consumed(self) -> int:
        return sum(event["count"] for event in self.events if event["name"] == "records_consumed")

    @property
    def commits(self) -> list[bool]:
        """Which of its commits succeeded."""
        return [event["success"] for event in self.events if event["name"] == "offsets_committed"]

    def end(self, with_signal: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
            self.process.wait(TIMEOUT_S)


@pytest.fixture
def verifiable(group_bootstrap: str, tmp_path: Path) -> Iterator[Any]:
    made: list[VerifiableConsumer] = []

    def make(group: str, topic: str, *words: str) -> VerifiableConsumer:
        log = tmp_path / f"verifiable{len(made)}"
        made.append(VerifiableConsumer(group_bootstrap, group, topic, log, *words))
        return made[-1]

    yield make
    for each in made:
        each.end(signal.SIGKILL)


@pytest.mark.parametrize("strategy", ["RangeAssignor", "CooperativeStickyAssignor"])
def test_verifiable_consumers_share_die_and_go(
    group_bootstrap: str, new_name: Name, verifiable: Any, strategy: str
) -> None:
    topic, group = create_topic(group_bootstrap, new_name("verifiable"), 4), new_name("group")
    words = (
        *("--group-protocol", "classic", "--reset-policy", "earliest", "--session-timeout", "3000"),
        *("--assignment-strategy", f"org.apache.kafka.clients.consumer.{strategy}"),
    )
    one, two = verifiable(group, topic, *words), verifiable(group, topic, *words)
    until(lambda: (one.assigned, two.assigned) == (2, 2), TIMEOUT_S, "half each")
    send(group_bootstrap, topic, [b"%d" % n for n in range(400)], 4)
    until(lambda: one.consumed + two.consumed == 400, TIMEOUT_S, "all records")
    assert (one.consumed, two.consumed) == (200, 200)
    until(lambda: len(one.commits) > 0 and len(two.commits) > 0, TIMEOUT_S, "commits")
    assert all(one.commits + two.commits)
    two.end(signal.SIGKILL)
    until(lambda: one.assigned == 4, TIMEOUT_S, "all partitions")
    send(group_bootstrap, topic, [b"%d" % n for n in range(40)], 4)
    until(lambda: one.consumed == 240, TIMEOUT_S, "the rest")
    one.end(signal.SIGTERM)
    assert one.events[-1]["name"] == "shutdown_complete"


def test_the_console_and_the_group_command(group_bootstrap: str, new_name: Name) -> None:
    topic, group = create_topic(group_bootstrap, new_name("console"), 2), new_name("group")
    send(group_bootstrap, topic, [b"%d" % n for n in range(20)], 2)

    def console(*words: str) -> list[int]:
        printed = tool(
            "consumer.ConsoleConsumer",
            *("--bootstrap-server", group_bootstrap, "--topic", topic, "--group", group),
            *("--command-property", "group.protocol=classic", "--timeout-ms", "10000", *words),
        )
        return sorted(int(line) for line in printed.splitlines())

    assert console("--from-beginning", "--max-messages", "20") == list(range(20))
    described = groups(group_bootstrap, "--describe", "--group", group, "--offsets")
    offsets = {line[2]: line[3:6] for line in described if line[0] == group}
    assert offsets == {"0": ["10", "10", "0"], "1": ["10", "10", "0"]}
    reset = groups(
        group_bootstrap,
        "--reset-offsets",
        "--group",
        group,
        "--topic",
        topic,
        "--shift-by",
        "-3",
        "--execute",
    )
    assert {tuple(line[1:]) for line in reset if line[0] == group} == {(topic, "0", "7"), (topic, "1", "7")}
    assert console("--max-messages", "6") == list(range(14, 20))
    assert [group, "Empty"] in [[line[0], line[-1]] for line in groups(group_bootstrap, "--list", "--state")]
    deleted = groups(group_bootstrap, "--delete", "--group", group)
    assert deleted[0][-2:] == ["was", "successful."], deleted
