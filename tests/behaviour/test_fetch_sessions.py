"""Fetch sessions (KIP-227): the client says what changed, the broker answers with what is new."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.protocol.messages import FetchRequest
from tests.conftest import Name
from tests.wire import Wire, append, batch, create_topic, fetch_partition, fetch_request, produce, values

FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR = 70, 71, 106
UNKNOWN_TOPIC_ID = 100


@pytest.fixture
def wire(bootstrap: str) -> Iterator[Wire]:
    with Wire(bootstrap) as connection:
        yield connection


def news(answer: Any) -> dict[int, list[bytes | None]]:
    """The partitions in an answer with their values; there is only one topic in these tests."""
    return {
        partition.partition_index: values(partition.records)
        for topic in answer.responses
        for partition in topic.partitions
    }


def ask(
    wire: Wire, places: dict[Any, Any], session_id: int, epoch: int, version: int = 12, **more: Any
) -> Any:
    return wire.ask(fetch_request(places, session_id=session_id, session_epoch=epoch, **more), version)


def open_session(wire: Wire, topic: Any, partitions: int = 3, version: int = 12) -> int:
    places = {topic: [fetch_partition(0, partition=number) for number in range(partitions)]}
    answer = ask(wire, places, 0, 0, version)
    assert answer.error_code == 0
    assert sorted(news(answer)) == list(range(partitions))  # the first answer is full
    assert answer.session_id > 0
    session_id: int = answer.session_id
    return session_id


def test_a_session_tells_only_what_is_new(wire: Wire, new_name: Name) -> None:
    topic = new_name("session")
    create_topic(wire, topic, partitions=3)
    session_id = open_session(wire, topic)
    empty = ask(wire, {}, session_id, 1)
    assert (empty.error_code, empty.session_id, news(empty)) == (0, session_id, {})
    assert produce(wire, topic, batch([b"one"]), partition=1).error_code == 0
    answer = ask(wire, {}, session_id, 2)
    assert (answer.session_id, news(answer)) == (session_id, {1: [b"one"]})
    # not moved on, so the same record comes again; then moved on, so it does not
    assert news(ask(wire, {}, session_id, 3)) == {1: [b"one"]}
    assert news(ask(wire, {topic: [fetch_partition(1, partition=1)]}, session_id, 4)) == {}
    assert produce(wire, topic, batch([b"two"]), partition=1).error_code == 0
    assert produce(wire, topic, batch([b"zero"]), partition=0).error_code == 0
    assert news(ask(wire, {}, session_id, 5)) == {0: [b"zero"], 1: [b"two"]}


def test_a_session_wakes_up_for_any_of_its_partitions(wire: Wire, bootstrap: str, new_name: Name) -> None:
    topic = new_name("session-wakes")
    create_topic(wire, topic, partitions=3)
    session_id = open_session(wire, topic)
    wire.send(fetch_request({}, session_id=session_id, session_epoch=1, max_wait_ms=15_000, min_bytes=1), 12)
    started = time.monotonic()
    with Wire(bootstrap) as writer:
        assert produce(writer, topic, batch([b"now"]), partition=2).error_code == 0
    assert news(wire.receive()[1]) == {2: [b"now"]}
    assert time.monotonic() - started < 5


def test_partitions_join_and_leave_a_session(wire: Wire, new_name: Name) -> None:
    topic = new_name("session-members")
    create_topic(wire, topic, partitions=4)
    for partition in range(4):
        assert produce(wire, topic, batch([b"%d" % partition]), partition=partition).error_code == 0
    session_id = open_session(wire, topic)
    forgotten = [FetchRequest.ForgottenTopic(topic=topic, partitions=[0, 1])]
    joined = {topic: [fetch_partition(0, partition=3)]}
    answer = ask(wire, joined, session_id, 1, forgotten_topics_data=forgotten)
    assert news(answer) == {2: [b"2"], 3: [b"3"]}
    assert news(ask(wire, {}, session_id, 2)) == {2: [b"2"], 3: [b"3"]}


def test_the_high_watermark_is_news(wire: Wire, new_name: Name) -> None:
    """A consumer that reads behind learns how far behind it is even where it gets no records."""
    topic = new_name("session-watermark")
    create_topic(wire, topic, partitions=2)
    session_id = open_session(wire, topic, partitions=2)
    append(wire, topic, b"x")
    # the position moves to the end before the next fetch: no record to give, but a new watermark
    answer = ask(wire, {topic: [fetch_partition(1)]}, session_id, 1)
    assert news(answer) == {0: []}
    assert answer.responses[0].partitions[0].high_watermark == 1
    assert news(ask(wire, {}, session_id, 2)) == {}


def test_a_wrong_epoch_and_an_unknown_session(wire: Wire, new_name: Name) -> None:
    topic = new_name("session-errors")
    create_topic(wire, topic, partitions=3)
    session_id = open_session(wire, topic)
    assert ask(wire, {}, session_id, 7).error_code == INVALID_FETCH_SESSION_EPOCH
    assert ask(wire, {}, session_id ^ 0x5555, 1).error_code == FETCH_SESSION_ID_NOT_FOUND
    assert ask(wire, {}, session_id, 1).error_code == 0  # the session itself is unharmed
    assert ask(wire, {}, session_id, 1).error_code == INVALID_FETCH_SESSION_EPOCH


def test_a_session_is_closed_by_the_last_epoch(wire: Wire, new_name: Name) -> None:
    topic = new_name("session-closed")
    create_topic(wire, topic, partitions=3)
    session_id = open_session(wire, topic)
    answer = ask(wire, {topic: [fetch_partition(0)]}, session_id, -1)
    assert (answer.error_code, answer.session_id, list(news(answer))) == (0, 0, [0])
    assert ask(wire, {}, session_id, 1).error_code == FETCH_SESSION_ID_NOT_FOUND


def test_a_session_is_replaced_by_a_new_one(wire: Wire, new_name: Name) -> None:
    topic = new_name("session-replaced")
    create_topic(wire, topic, partitions=3)
    first = open_session(wire, topic)
    answer = ask(wire, {topic: [fetch_partition(0, partition=1)]}, first, 0)
    assert answer.error_code == 0
    assert answer.session_id not in (0, first)
    assert list(news(answer)) == [1]
    assert ask(wire, {}, first, 1).error_code == FETCH_SESSION_ID_NOT_FOUND


def test_without_a_session_every_answer_is_full(wire: Wire, new_name: Name) -> None:
    topic = new_name("sessionless")
    create_topic(wire, topic, partitions=2)
    places = {topic: [fetch_partition(0), fetch_partition(0, partition=1)]}
    for _ in range(2):
        answer = ask(wire, places, 0, -1)
        assert (answer.error_code, answer.session_id, sorted(news(answer))) == (0, 0, [0, 1])


def test_sessions_by_topic_id(wire: Wire, new_name: Name) -> None:
    topic = new_name("session-ids")
    topic_id = create_topic(wire, topic, partitions=3)
    session_id = open_session(wire, topic_id, version=18)
    append(wire, topic, b"by id")
    answer = ask(wire, {}, session_id, 1, version=18)
    assert answer.responses[0].topic_id == topic_id
    assert news(answer) == {0: [b"by id"]}
    # names and ids do not mix in one session
    assert ask(wire, {topic: [fetch_partition(0)]}, session_id, 2, version=12).error_code in (
        FETCH_SESSION_TOPIC_ID_ERROR,
        FETCH_SESSION_ID_NOT_FOUND,
    )


@pytest.mark.parametrize("version", [13, 15, 18])
def test_topic_ids_that_nobody_has(wire: Wire, new_name: Name, version: int) -> None:
    topic_id = create_topic(wire, new_name("fetch-id"))
    unknown = uuid.uuid4()
    places = {topic_id: [fetch_partition(0)], unknown: [fetch_partition(0)]}
    answer = wire.ask(fetch_request(places, max_wait_ms=100, min_bytes=1), version)
    assert answer.error_code == 0
    codes = {topic.topic_id: topic.partitions[0].error_code for topic in answer.responses}
    assert codes == {topic_id: 0, unknown: UNKNOWN_TOPIC_ID}


def test_a_session_outlives_its_connection(bootstrap: str, wire: Wire, new_name: Name) -> None:
    topic = new_name("session-moves")
    create_topic(wire, topic, partitions=3)
    session_id = open_session(wire, topic)
    append(wire, topic, b"later")
    with Wire(bootstrap) as second:
        assert news(ask(second, {}, session_id, 1)) == {0: [b"later"]}
