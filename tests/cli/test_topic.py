"""`millstream topic`: what people see, what programs see, what is said when it cannot be done."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import CommandLine
from tests.conftest import Name


def test_create_list_describe_delete(millstream: CommandLine, new_name: Name) -> None:
    name = new_name("life")
    assert millstream("topic", "create", name, "-p", "3").text == f"Topic {name} created: 3 partitions.\n"
    listed = millstream("topic", "list").text.splitlines()
    assert listed[0].split() == ["TOPIC", "PARTITIONS", "REPLICAS"]
    assert f"{name} 3 1".split() in [line.split() for line in listed]
    described = millstream("topic", "describe", name).text
    assert described.startswith(f"{name}  (id ")
    assert described.splitlines()[-1].split()[0] == "2"
    assert millstream("topic", "delete", name, "--yes").text == f"Topic {name} deleted.\n"
    assert name not in millstream("topic", "list").text


def test_json_for_programs(millstream: CommandLine, new_name: Name) -> None:
    name = new_name("json")
    created = millstream("topic", "create", name, "-p", "2", "-c", "retention.ms=5000", "--json").json
    assert created == [
        {"name": name, "created": True, "id": created[0]["id"], "partitions": 2, "replicas": 1}
    ]
    assert len(created[0]["id"]) == 22, "ids are written as Kafka's tools write them"
    millstream("produce", name, "-p", "1", given=b"a\nb\n")
    (described,) = millstream("topic", "describe", name, "--json").json
    assert (described["name"], described["id"], described["internal"]) == (name, created[0]["id"], False)
    assert described["configs"] == {"retention.ms": "5000"}
    node = described["partitions"][0]["leader"]
    assert described["partitions"][1] == {
        "partition": 1,
        "leader": node,
        "leader_epoch": 0,
        "replicas": [node],
        "isr": [node],
        "offline": [],
        "start_offset": 0,
        "end_offset": 2,
    }
    (listed,) = millstream("topic", "list", name, "--json").json
    expected = {"name": name, "id": created[0]["id"], "partitions": 2, "replicas": 1, "internal": False}
    assert listed == expected
    assert millstream("topic", "delete", name, "--yes", "--json").json == [{"name": name, "deleted": True}]


def test_list_takes_a_pattern(millstream: CommandLine, new_name: Name) -> None:
    one, two = new_name("pattern-a"), new_name("pattern-b")
    millstream("topic", "create", one, two)
    assert [topic["name"] for topic in millstream("topic", "list", "pattern-a*", "--json").json] == [one]
    none = millstream("topic", "list", "no-such-*")
    assert none.out == b""
    assert "There are no topics" in none.err


def test_what_exists_already(millstream: CommandLine, new_name: Name) -> None:
    name = new_name("twice")
    millstream("topic", "create", name)
    again = millstream.run("topic", "create", name)
    assert again.code == 1
    assert again.err.startswith(f"error: topic {name}: ")
    assert "--if-not-exists" in again.err
    assert millstream("topic", "create", name, "--if-not-exists").text == f"Topic {name} exists already.\n"
    dry = millstream("topic", "create", new_name("dry"), "-p", "5", "--dry-run")
    assert "could be created: 5 partitions" in dry.text


def test_what_does_not_exist(millstream: CommandLine, new_name: Name) -> None:
    name = new_name("absent")
    for words in (
        ["describe", name],
        ["config", name],
        ["alter", name, "-p", "2"],
        ["delete", name, "--yes"],
    ):
        result = millstream.run("topic", *words)
        assert result.code == 1, words
        assert name in result.err
        assert "millstream topic list" in result.err
    assert "does not exist" in millstream("topic", "delete", name, "--yes", "--if-exists").text


def test_errors_are_json_too(millstream: CommandLine, new_name: Name) -> None:
    result = millstream.run("topic", "describe", new_name("absent"), "--json")
    assert result.code == 1
    assert result.out == b""
    assert json.loads(result.err)["error"] == "NoSuchTopic"
    misused = millstream.run("topic", "list", "--timeout", "soon", "--json")
    assert (misused.code, misused.out) == (2, b"")
    assert "--timeout" in json.loads(misused.err)["message"]


def test_alter(millstream: CommandLine, new_name: Name) -> None:
    name = new_name("altered")
    millstream("topic", "create", name)
    millstream("topic", "alter", name, "-p", "4", "-c", "retention.ms=1000", "-c", "cleanup.policy=compact")
    (described,) = millstream("topic", "describe", name, "--json").json
    assert len(described["partitions"]) == 4
    assert described["configs"] == {"retention.ms": "1000", "cleanup.policy": "compact"}
    millstream("topic", "alter", name, "--reset", "retention.ms")
    (described,) = millstream("topic", "describe", name, "--json").json
    assert described["configs"] == {"cleanup.policy": "compact"}
    fewer = millstream.run("topic", "alter", name, "-p", "2")
    assert fewer.code == 1
    bad = millstream.run("topic", "alter", name, "-c", "retention.ms=soon")
    assert bad.code == 1
    assert "retention.ms" in bad.err
    nothing = millstream.run("topic", "alter", name)
    assert (nothing.code, "nothing to change" in nothing.err) == (2, True)


def test_config(millstream: CommandLine, new_name: Name) -> None:
    name = new_name("config")
    millstream("topic", "create", name)
    everything = millstream("topic", "config", name, "--all", "--json").json
    assert len(everything) > 20
    assert all(set(entry) == {"name", "value", "source", "type", "read_only", "doc"} for entry in everything)
    millstream("topic", "alter", name, "-c", "retention.ms=7000")
    lines = millstream("topic", "config", name).text.splitlines()
    assert ["retention.ms", "7000", "topic"] in [line.split() for line in lines]
    one = millstream("topic", "config", name, "cleanup.policy", "--doc").text
    assert "cleanup.policy" in one
    assert "MEANING" in one
    bad = millstream.run("topic", "config", name, "no.such.key")
    assert bad.code == 1
    assert "no.such.key" in bad.err


def test_trim(millstream: CommandLine, new_name: Name) -> None:
    name = new_name("trim")
    millstream("topic", "create", name)
    millstream("produce", name, given=b"a\nb\nc\n")
    assert (
        millstream("topic", "trim", name, "--before", "2", "-y").text
        == f"Partition {name}-0 now starts at offset 2.\n"
    )
    assert millstream("consume", name, "--exit", "-f", "value").out == b"c\n"
    assert millstream("topic", "trim", name, "--before", "end", "-y", "--json").json == [
        {"partition": 0, "start_offset": 3}
    ]
    beyond = millstream.run("topic", "trim", name, "--before", "99", "-y")
    assert beyond.code == 1
    assert f"beyond the end of {name}-0: write an offset up to 3, or end" in beyond.err
    beyond = millstream.run("topic", "trim", name, "--before", "99", "-y", "--json")
    assert "up to 3" in beyond.json[0]["error"]
    millstream("topic", "alter", name, "-c", "cleanup.policy=compact")
    compacted = millstream.run("topic", "trim", name, "--before", "end", "-y")
    assert compacted.code == 1
    assert "if its cleanup.policy has `delete`" in compacted.err


@pytest.mark.parametrize("words", [["delete", "t"], ["trim", "t", "--before", "end"]])
def test_nothing_is_destroyed_unless_somebody_says_yes(millstream: CommandLine, words: list[str]) -> None:
    result = millstream.run("topic", *words)
    assert result.code == 2
    assert "--yes" in result.err


def test_a_replication_factor_beyond_the_brokers(millstream: CommandLine, new_name: Name) -> None:
    result = millstream.run("topic", "create", new_name("many"), "-r", "3")
    assert result.code == 1
    assert "at most as many replicas as there are brokers" in result.err
