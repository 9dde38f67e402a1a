"""`millstream group`: seen and moved, by people and by programs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Consumer, TopicPartition

from millstream.cli.group_show import ranges
from millstream.model import TopicPartition as Place
from tests.cli.conftest import CommandLine
from tests.conftest import Name
from tests.processes import until


@pytest.fixture
def topic(millstream: CommandLine, new_name: Name) -> str:
    """A topic with ten records in each of two partitions."""
    name = new_name("read")
    millstream("topic", "create", name, "-p", "2")
    for partition in ("0", "1"):
        millstream("produce", name, "-p", partition, given=b"".join(b"%d\n" % n for n in range(10)))
    return name


@pytest.fixture
def member(millstream: CommandLine, topic: str, new_name: Name) -> Iterator[str]:
    """A group with a member that has committed offset 4 of partition 0; its name."""
    group = new_name("live")
    settings = {
        "bootstrap.servers": os.environ["MILLSTREAM_BOOTSTRAP"],
        "group.id": group,
        "client.id": "app",
        "group.instance.id": "one",
        "enable.auto.commit": False,
    }
    with closing(Consumer(settings)) as consumer:
        consumer.subscribe([topic])
        until(lambda: [consumer.poll(0.1)] and len(consumer.assignment()) == 2, 30, "an assignment")
        consumer.commit(offsets=[TopicPartition(topic, 0, 4, metadata="note")], asynchronous=False)
        yield group


def test_a_live_group(millstream: CommandLine, topic: str, member: str) -> None:
    (listed,) = millstream("group", "list", member, "--json").json
    assert listed == {
        "name": member,
        "state": "Stable",
        "type": "classic",
        "protocol_type": "consumer",
        "coordinator": listed["coordinator"],
    }
    assert millstream("group", "list", member, "--state", "empty", "--json").json == []
    (described,) = millstream("group", "describe", member, "--json").json
    assert (described["state"], described["assignor"]) == ("Stable", "range")
    (shown,) = described["members"]
    assert (shown["client_id"], shown["instance_id"], shown["host"]) == ("app", "one", "127.0.0.1")
    assert shown["topics"] == [topic]
    assert shown["partitions"] == [{"topic": topic, "partition": n} for n in range(2)]
    lags = millstream("group", "lag", member, "--json").json
    assert [(each["partition"], each["committed"], each["end"], each["lag"]) for each in lags] == [
        (0, 4, 10, 6),
        (1, None, 10, 10),
    ]
    assert {each["client"] for each in lags} == {"app"}
    # confluent-kafka commits the end of its C string too
    assert described["offsets"][0]["metadata"].rstrip("\0") == "note"


def test_tables_for_people(millstream: CommandLine, topic: str, member: str) -> None:
    listed = millstream("group", "list", member).text.splitlines()
    assert listed[0].split() == ["GROUP", "STATE", "TYPE", "PROTOCOL", "COORDINATOR"]
    assert listed[1].split()[:4] == [member, "Stable", "classic", "consumer"]
    described = millstream("group", "describe", member).text.splitlines()
    assert described[0].startswith(f"{member}  (Stable, classic, range, coordinator ")
    assert described[2].split()[1:] == ["one", "app", "127.0.0.1", f"{topic}:0-1"]
    assert described[-2].split() == [topic, "0", "4", "10", "6", "app"]
    assert millstream("group", "lag", member, "-t", topic).text.splitlines()[-1].split() == [
        *(member, topic, "1", "-", "10", "10", "app"),
    ]
    assert "Nothing was committed" in millstream("group", "lag", member, "-t", "other").err


def test_reading_from_the_command_line_disturbs_no_group(
    millstream: CommandLine, topic: str, member: str
) -> None:
    before = (
        millstream("group", "list", "--json").json,
        millstream("group", "describe", member, "--json").json,
    )
    millstream("consume", topic, "-o", "start", "-n", "15")
    millstream("consume", topic, "--exit")
    after = millstream("group", "list", "--json").json, millstream("group", "describe", member, "--json").json
    assert after == before


def test_a_live_group_is_not_moved_and_not_deleted(millstream: CommandLine, topic: str, member: str) -> None:
    millstream("group", "seek", member, "--to", "start")  # a dry run harms nobody
    refused = millstream.run("group", "seek", member, "--to", "start", "--execute")
    assert refused.code == 1
    assert "has members" in refused.err
    assert "Stop its consumers first" in refused.err
    refused = millstream.run("group", "delete", member, "--yes")
    assert refused.code == 1
    assert "Stop its consumers first" in refused.err
    refused = millstream.run("group", "delete", member, "--topic", topic, "--yes")
    assert refused.code == 1
    assert "subscribed" in refused.err


def offsets(millstream: CommandLine, group: str) -> dict[int, int]:
    return {each["partition"]: each["committed"] for each in millstream("group", "lag", group, "--json").json}


def test_seek_is_a_dry_run_by_default(millstream: CommandLine, topic: str, new_name: Name) -> None:
    group = new_name("dry")
    shown = millstream("group", "seek", group, "--to", "7", "-t", topic)
    assert [line.split() for line in shown.text.splitlines()[1:]] == [
        [topic, "0", "-", "7"],
        [topic, "1", "-", "7"],
    ]
    assert "--execute" in shown.err
    assert millstream.run("group", "describe", group).code == 1
    done = millstream("group", "seek", group, "--to", "7", "-t", topic, "--execute", "--json").json
    assert done == {
        "group": group,
        "executed": True,
        "moves": [{"topic": topic, "partition": n, "from": None, "to": 7} for n in range(2)],
    }
    assert offsets(millstream, group) == {0: 7, 1: 7}


def test_where_a_group_can_go(millstream: CommandLine, topic: str, new_name: Name) -> None:
    group = new_name("moved")
    now_ms = int(time.time() * 1000)

    def seek(*words: str) -> dict[int, int]:
        millstream("group", "seek", group, *words, "--execute")
        return offsets(millstream, group)

    assert seek("--to", "start", "-t", topic) == {0: 0, 1: 0}
    assert seek("--to", "end") == {0: 10, 1: 10}
    assert seek("--shift", "-3") == {0: 7, 1: 7}
    assert seek("--shift", "2", "-t", f"{topic}:1") == {0: 7, 1: 9}
    assert seek("--shift", "100") == {0: 10, 1: 10}
    assert seek("--to", "99999") == {0: 10, 1: 10}
    assert seek("--to", "+2", "-t", f"{topic}:0,1") == {0: 2, 1: 2}
    assert seek("--to=-4") == {0: 6, 1: 6}
    assert seek("--to", "@-1h") == {0: 0, 1: 0}
    assert seek("--to", f"@{now_ms + 60_000}") == {0: 10, 1: 10}
    assert seek("--to", "@2020-01-01T00:00:00Z") == {0: 0, 1: 0}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "give either --to POSITION or --shift N"),
        (("--to", "start", "--shift", "1"), 2, "give either"),
        (("--to", "1:2"), 2, "only go to one place"),
        (("--to", "somewhere"), 2, "not a range of offsets"),
        (("--to", "start", "-t", "x:y"), 2, "write orders:0,2"),
        (("--to", "start"), 1, "has committed nothing"),
        (("--to", "start", "-t", "no-such-topic"), 1, "no-such-topic"),
    ],
)
def test_what_cannot_be_done_is_said(
    millstream: CommandLine, new_name: Name, words: tuple[str, ...], code: int, said: str
) -> None:
    failed = millstream.run("group", "seek", new_name("nobody"), *words, "--timeout", "5s")
    assert failed.code == code
    assert said in failed.err


def test_partitions_that_are_not_there(millstream: CommandLine, topic: str, new_name: Name) -> None:
    group = new_name("nowhere")
    failed = millstream.run("group", "seek", group, "--to", "1", "-t", f"{topic}:7")
    assert "no partition 7" in failed.err
    failed = millstream.run("group", "seek", group, "--shift", "1", "-t", topic)
    assert "Use --to" in failed.err


def test_delete(millstream: CommandLine, topic: str, new_name: Name) -> None:
    group = new_name("gone")
    other = new_name("kept")
    millstream("topic", "create", other)
    millstream("group", "seek", group, "--to", "start", "-t", topic, "-t", other, "--execute")
    refused = millstream.run("group", "delete", group)
    assert refused.code == 2
    assert "--yes" in refused.err
    said = millstream("group", "delete", group, "--topic", topic, "--yes").text
    assert said == f"Group {group}: 2 offsets deleted.\n"
    assert [each["topic"] for each in millstream("group", "lag", group, "--json").json] == [other]
    assert millstream("group", "delete", group, "--yes").text == f"Group {group} deleted.\n"
    assert millstream("group", "list", group, "--json").json == []
    missing = millstream.run("group", "delete", group, "--yes", "--json")
    assert missing.code == 1
    assert '"GroupIdNotFound"' in missing.err
    assert "millstream group list" in missing.err


def test_a_topic_that_is_gone(millstream: CommandLine, topic: str, new_name: Name) -> None:
    group = new_name("stale")
    millstream("group", "seek", group, "--to", "5", "-t", topic, "--execute")
    millstream("topic", "delete", topic, "--yes")

    def nothing_left() -> bool:
        seen = millstream.run("group", "lag", group, "--json")
        return seen.code == 1 or seen.json == []  # Kafka keeps a group without anything in it

    until(nothing_left, 30, "its offsets are gone too")


def test_ranges() -> None:
    places = [Place("b", 1), Place("a", 5), Place("a", 2), Place("a", 0), Place("a", 1), Place("c", 3)]
    assert ranges(places) == "a:0-2,5 b:1 c:3"
    assert ranges([]) == ""
