"""`millstream txn`: transactions are listed, described and aborted, also those that nobody else will end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from millstream.client.cluster import parse_bootstrap
from millstream.protocol.messages import IncrementalAlterConfigsRequest
from tests.cli.conftest import CommandLine
from tests.conftest import Name
from tests.processes import until
from tests.transactional import (
    NEW_END,
    NEW_PRODUCE,
    OLD_PRODUCE,
    TransactionalProducer,
    read_committed,
    visible,
)
from tests.wire import Wire, append, create_topic, produce_request, produced

FENCED = 90
VERIFICATION = "transaction.partition.verification.enable"


@pytest.fixture
def wire(millstream: CommandLine) -> Iterator[Wire]:
    host, port = parse_bootstrap(os.environ["MILLSTREAM_BOOTSTRAP"])[0]
    with Wire(f"{host}:{port}") as connection:
        yield connection


@pytest.fixture
def topic(wire: Wire, new_name: Name) -> str:
    name = new_name("txn")
    create_topic(wire, name, partitions=2)
    return name


@pytest.fixture
def producer(wire: Wire, topic: str, new_name: Name) -> TransactionalProducer:
    """One that has an open transaction in both partitions."""
    made = TransactionalProducer(wire, new_name("id"), topic).begun()
    for partition in (0, 1):
        assert made.send(b"x", partition=partition, version=NEW_PRODUCE).error_code == 0
    return made


def verify(wire: Wire, does_verify: bool) -> None:
    """Let the brokers check, or not, that partitions are part of a transaction."""
    config = IncrementalAlterConfigsRequest.AlterableConfig(
        name=VERIFICATION, config_operation=0, value=str(does_verify).lower()
    )
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=4, resource_name="", configs=[config]
    )
    (answer,) = wire.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)).responses
    assert answer.error_code == 0, answer


@pytest.fixture
def stuck(wire: Wire, topic: str, new_name: Name) -> TransactionalProducer:
    """A producer that wrote to partition 1 without telling its coordinator, long ago."""
    made = TransactionalProducer(wire, new_name("id"), topic).begun()
    verify(wire, False)
    try:
        record = made.batch([b"stuck"], sequence=0)
        request = produce_request(topic, record, partition=1)
        request.transactional_id = made.transactional_id
        until(lambda: produced(wire.ask(request, OLD_PRODUCE)).error_code == 0, 30, "it is not verified")
    finally:
        verify(wire, True)
    append(wire, topic, b"behind")
    return made


def test_list_and_describe(millstream: CommandLine, producer: TransactionalProducer, topic: str) -> None:
    name = producer.transactional_id
    (listed,) = millstream("txn", "list", name, "--json").json
    assert listed == {
        "transactional_id": name,
        "state": "Ongoing",
        "producer_id": producer.producer_id,
        "coordinator": listed["coordinator"],
    }
    assert name in millstream("txn", "list", "--state", "ongoing").text
    assert millstream("txn", "list", name, "--state", "Empty", "--json").json == []
    (described,) = millstream("txn", "describe", name, "--json").json
    now_ms = time.time() * 1000
    assert abs(described.pop("started_ms") - now_ms) < 60_000
    for partition in described["partitions"]:
        assert abs(partition.pop("last_written_ms") - now_ms) < 60_000
    assert described == {
        "transactional_id": name,
        "state": "Ongoing",
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "timeout_ms": 60_000,
        "coordinator": listed["coordinator"],
        "partitions": [
            {"topic": topic, "partition": 0, "start_offset": 0},
            {"topic": topic, "partition": 1, "start_offset": 0},
        ],
    }
    text = millstream("txn", "describe", name).text
    assert text.startswith(f"{name}  (Ongoing, producer {producer.producer_id}, epoch {producer.epoch}, ")
    assert "may take 60 s" in text
    producer.abort()


def test_what_does_not_exist(millstream: CommandLine, topic: str) -> None:
    for words in (("describe", "nobody"), ("abort", "nobody", "--yes")):
        failed = millstream.run("txn", *words)
        assert failed.code == 1
        assert "millstream txn list" in failed.err
    assert millstream.run("txn", "list", "--hanging", "-t", "nothing").code == 1
    assert millstream("txn", "list", "nobody").err == "There are no such transactional ids.\n"


def test_abort_by_id(millstream: CommandLine, producer: TransactionalProducer, topic: str) -> None:
    wire, name = producer.wire, producer.transactional_id
    assert millstream.run("txn", "abort", name).code == 2  # nobody can be asked
    assert f"{name} has no open transaction" in millstream("txn", "abort", name, "--yes").text
    assert producer.end(is_commit=True, version=NEW_END).error_code == FENCED
    for partition in (0, 1):
        assert visible(read_committed(wire, topic, partition=partition)) == []
        assert read_committed(wire, topic, partition=partition).last_stable_offset == 2
    done = millstream("txn", "abort", name, "--yes", "--json").json
    assert done == [{"transactional_id": name, "aborted": True}]


def test_a_hanging_transaction_is_found_and_aborted(
    millstream: CommandLine, stuck: TransactionalProducer, producer: TransactionalProducer, topic: str
) -> None:
    """Beside one that is open and known, and so does not hang."""
    wire = stuck.wire
    assert millstream("txn", "list", "--hanging", "--json").json == []  # it is too young
    (found,) = millstream("txn", "list", "--hanging", "--min-age", "0s", "--json").json
    assert abs(found.pop("last_written_ms") - time.time() * 1000) < 60_000
    assert found == {
        "topic": topic,
        "partition": 1,
        "producer_id": stuck.producer_id,
        "producer_epoch": stuck.epoch,
        "coordinator_epoch": -1,
        "start_offset": 0,
    }
    assert topic in millstream("txn", "list", "--hanging", "--min-age", "0s", "-t", topic).text
    millstream("txn", "abort", "--hanging", "--min-age", "1h", "--yes")
    (aborted,) = millstream("txn", "abort", "--hanging", "--min-age", "0s", "--yes", "--json").json
    assert aborted["aborted"] is True
    assert millstream("txn", "list", "--hanging", "--min-age", "0s").err == "No transaction hangs.\n"
    producer.abort()
    until(lambda: read_committed(wire, topic, partition=1).last_stable_offset == 4, 30, "readers go on")
    assert visible(read_committed(wire, topic, partition=1)) == []


def test_abort_in_a_partition(millstream: CommandLine, stuck: TransactionalProducer, topic: str) -> None:
    place = f"{topic}:1"
    shown = millstream("txn", "abort", "-p", place, "--start-offset", "7", "--yes")
    assert shown.err == "There is nothing to abort.\n"
    shown = millstream("txn", "abort", "-p", place, "--start-offset", "0", "--yes")
    assert shown.text.endswith("1 transaction aborted.\n")
    assert visible(read_committed(stuck.wire, topic, partition=1)) == []


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("id", "--hanging"),
        ("--hanging", "-p", "t:0"),
        ("id", "--start-offset", "3"),
        ("-p", "no-number"),
    ],
)
def test_calls_that_make_no_sense(millstream: CommandLine, words: tuple[str, ...]) -> None:
    assert millstream.run("txn", "abort", *words, "--yes").code == 2
    assert millstream.run("txn", "list", "pattern", "--hanging").code == 2
