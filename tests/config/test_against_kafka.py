"""Our keys beside those of Apache Kafka 4.3.0, which kafka-4.3.0.tsv lists: kinds, defaults, limits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from millstream.config.broker_keys import BROKER_KEYS
from millstream.config.keys import BadValue, ConfigKey
from millstream.config.topic import TOPIC_KEYS


class Row(NamedTuple):
    where: str
    name: str
    kind: str
    default: str
    valid: str
    scope: str


TABLE = Path(__file__).with_name("kafka-4.3.0.tsv")
ROWS = [Row(*line.split("\t")) for line in TABLE.read_text().splitlines() if not line.startswith("#")]

OTHER_DEFAULTS = {
    "controller.listener.names": "there is no controller quorum",
    "listeners": "a laptop's broker listens to that laptop only",
    "log.dir": "data belongs where it is looked for, not under /tmp",
    "metric.reporters": "there is no JMX",
    "node.id": "one command starts a broker",
    "process.roles": "a process is a broker",
    "queued.max.request.bytes": "memory is bounded from the start",
    "socket.receive.buffer.bytes": "the system sizes buffers by what a connection needs",
    "socket.send.buffer.bytes": "the system sizes buffers by what a connection needs",
}
OTHER_SCOPES = {
    "listener.security.protocol.map": "as listeners",
    "listeners": "a broker that is to listen elsewhere is restarted",
}
OURS = {
    "allow.everyone.if.no.acl.found",  # of Kafka's authorizer, not of its broker
    "super.users",
    "follower.replication.throttled.rate",  # set while a broker runs only
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
    "batch.check.threads",
    "fetch.local.bytes",
    "flush.before.ack",
    "log.dir.flush.threads",
    "log.dir.read.threads",
    "log.flush.before.ack",
    "lost.log.dirs",
    "max.decompressed.bytes",
    "max.open.files",
    "max.unsent.bytes",
    "metrics.listener",
    "min.incremental.fetch.session.eviction.ms",
    "registry",
    "registry.session.timeout.ms",
}


def key_of(row: Row) -> ConfigKey:
    return (TOPIC_KEYS if row.where == "topic" else BROKER_KEYS)[row.name]


def takes(key: ConfigKey, text: str) -> bool:
    try:
        key.parse(text)
    except BadValue:
        return False
    return True


def test_every_key_of_kafka_is_here_and_no_other_unnoticed() -> None:
    kafka = {row.name for row in ROWS}
    here = {name for keys in (TOPIC_KEYS, BROKER_KEYS) for name, key in keys.items() if not key.is_internal}
    assert kafka - here == set()
    assert here - kafka == OURS
    assert len(ROWS) > 350


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.where}-{row.name}")
def test_a_key_is_as_in_kafka(row: Row) -> None:
    key = key_of(row)
    assert key.kind == row.kind
    assert (key.scope == row.scope) != (row.name in OTHER_SCOPES)
    if row.name not in OTHER_DEFAULTS:
        assert key.render(key.default) == (None if row.default == "<null>" else row.default)
    if numbers := re.match(r"\[(-?[\d.]+),\.\.\.(?:,(-?[\d.]+))?\]", row.valid):
        step = 0.01 if row.kind == "double" else 1
        low = float(numbers[1]) if row.kind == "double" else int(numbers[1])
        assert takes(key, str(low))
        assert not takes(key, str(low - step)) or "or -1" in row.valid
        if numbers[2]:
            high = float(numbers[2]) if row.kind == "double" else int(numbers[2])
            assert takes(key, str(high))
            assert not takes(key, str(high + step))
    elif words := re.fullmatch(r"(\(case insensitive\) )?\[([\w, ]+)\]", row.valid):
        for word in words[2].split(", "):
            assert takes(key, word)
            assert takes(key, word.swapcase()) == bool(words[1])
        assert not takes(key, "nonsense")


@pytest.mark.parametrize("name", sorted(OTHER_DEFAULTS))
def test_a_default_that_differs_does_differ(name: str) -> None:
    (row,) = (row for row in ROWS if row.name == name)
    assert key_of(row).render(key_of(row).default) != row.default


@pytest.mark.parametrize("keys", [TOPIC_KEYS, BROKER_KEYS])
def test_every_key_has_a_sentence_and_a_default_that_it_takes(keys: dict[str, ConfigKey]) -> None:
    for key in keys.values():
        assert key.doc[0].isupper(), key.name
        assert key.doc.endswith("."), key.name
        assert not re.search(r"  |[a-z][.;,][A-Za-z]", re.sub(r"[a-z]+(\.[a-z]+)+", "key", key.documentation))
        assert not key.idle.endswith("."), key.name
        text = key.render(key.default)
        if text is not None:
            assert key.parse(text) == key.default, key.name
