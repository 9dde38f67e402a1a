"""kcat, as a person at a shell uses it (its librdkafka is an old one: version 2.0.2 in Debian)."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.compat.samples import CODECS
from tests.compat.stored import stored_codecs
from tests.conftest import Name
from tests.processes import until

TIMEOUT_S = 30.0


def kcat(bootstrap: str, *words: str, given: bytes = b"") -> bytes:
    """One run of kcat; what it printed."""
    command = ["kcat", "-b", bootstrap, "-m", "20", *words]
    done = subprocess.run(command, input=given, capture_output=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


def records(bootstrap: str, topic: str, *words: str) -> list[dict[str, Any]]:
    """All records of a topic's first partition as kcat's JSON shows them."""
    fast = ("-X", "fetch.wait.max.ms=20")
    printed = kcat(bootstrap, "-C", "-t", topic, "-p", "0", "-e", "-q", "-J", *fast, *words)
    return [json.loads(line) for line in printed.splitlines()]


@pytest.mark.parametrize("idempotence", ["true", "false"], ids=["idempotent", "plain"])
@pytest.mark.parametrize("codec", CODECS)
def test_lines_go_in_and_come_out(bootstrap: str, new_name: Name, codec: str, idempotence: str) -> None:
    topic = new_name(f"kcat-{codec}")
    lines = [f"key{n}:value {n} " + "grain " * 20 for n in range(300)]
    kcat(
        bootstrap,
        "-P",
        "-t",
        topic,
        "-p",
        "0",
        "-K:",
        "-z",
        codec,
        "-H",
        "mill=stone",
        "-H",
        "mill=wheel",
        "-X",
        f"enable.idempotence={idempotence}",
        given="\n".join(lines).encode(),
    )
    found = records(bootstrap, topic, "-o", "beginning")
    assert [f"{record['key']}:{record['payload']}" for record in found] == lines
    assert [record["offset"] for record in found] == list(range(300))
    assert {tuple(record["headers"]) for record in found} == {("mill", "stone", "mill", "wheel")}
    assert stored_codecs(bootstrap, topic) == {codec}


def test_null_keys_and_values(bootstrap: str, new_name: Name) -> None:
    topic = new_name("kcat-null")
    kcat(bootstrap, "-P", "-t", topic, "-p", "0", "-K:", "-Z", given=b"gone:\n:nameless\n:\n")
    found = records(bootstrap, topic, "-o", "beginning")
    assert [(record["key"], record["payload"]) for record in found] == [
        ("gone", None),
        (None, "nameless"),
        (None, None),
    ]


def test_reading_from_offsets_and_times(bootstrap: str, new_name: Name) -> None:
    topic = new_name("kcat-offsets")
    for part in (b"0\n1\n2\n", b"3\n4\n5\n"):
        kcat(bootstrap, "-P", "-t", topic, "-p", "0", given=part)
    all_records = records(bootstrap, topic, "-o", "beginning")
    assert [record["payload"] for record in all_records] == ["0", "1", "2", "3", "4", "5"]
    assert [record["payload"] for record in records(bootstrap, topic, "-o", "4")] == ["4", "5"]
    assert [record["payload"] for record in records(bootstrap, topic, "-o", "-2")] == ["4", "5"]
    second_ms = all_records[3]["ts"]
    assert second_ms > all_records[0]["ts"]
    since = records(bootstrap, topic, "-o", f"s@{second_ms}")
    assert [record["payload"] for record in since] == ["3", "4", "5"]
    for time_ms, offset in ((second_ms, 3), (second_ms + 3_600_000, -1), (-1, 6), (-2, 0)):
        asked = kcat(bootstrap, "-Q", "-t", f"{topic}:0:{time_ms}")
        assert asked.decode() == f"{topic} [0] offset {offset}\n"


def test_metadata_of_one_and_of_all_topics(bootstrap: str, new_name: Name) -> None:
    topic = new_name("kcat-metadata")
    kcat(bootstrap, "-P", "-t", topic, given=b"x\n")
    listing = json.loads(kcat(bootstrap, "-L", "-J"))
    assert [broker["name"] for broker in listing["brokers"]] == [bootstrap]
    assert topic in [entry["topic"] for entry in listing["topics"]]
    (one,) = json.loads(kcat(bootstrap, "-L", "-J", "-t", topic))["topics"]
    assert [partition["partition"] for partition in one["partitions"]] == [0, 1, 2, 3]
    leaders = {partition["leader"] for partition in one["partitions"]}
    assert leaders == {broker["id"] for broker in listing["brokers"]}


def test_a_listener_gets_records_as_they_come(bootstrap: str, new_name: Name) -> None:
    topic = new_name("kcat-tail")
    kcat(bootstrap, "-P", "-t", topic, "-p", "0", given=b"first\n")
    command = [
        "kcat",
        "-b",
        bootstrap,
        "-C",
        "-t",
        topic,
        "-p",
        "0",
        "-o",
        "beginning",
        "-c",
        "2",
        "-u",
        "-q",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as listener:
        assert listener.stdout is not None
        try:
            assert listener.stdout.readline() == b"first\n"
            kcat(bootstrap, "-P", "-t", topic, "-p", "0", given=b"second\n")
            assert listener.stdout.readline() == b"second\n"
            until(lambda: listener.poll() is not None, TIMEOUT_S, "kcat ends after two records")
            assert listener.returncode == 0
        finally:
            listener.kill()
