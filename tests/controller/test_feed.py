"""What brokers are told: changes by number, everything after a gap, and the way over the wire."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from millstream.cluster.metadata import BrokerNode, Endpoint, PartitionState, Topic
from millstream.config.broker import BrokerConfig
from millstream.controller import feed as feed_module
from millstream.controller import tree
from millstream.controller.answers import answer, brokers_in, deleted_in, topics_in
from millstream.controller.feed import Feed
from millstream.controller.picture import Picture
from millstream.protocol.messages import (
    ClusterStateRequest,
    ClusterStateResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)

GONE = UUID(int=9)


def test_changes_since_a_number_are_told_together() -> None:
    feed = Feed()
    feed.publish({"a": [0, 1]})
    feed.publish({"a": [2], "b": []})
    feed.publish(deleted={GONE: "c"})
    assert feed.sequence == 3
    since = feed.since(1)
    assert since is not None
    assert (since.topics, since.deleted) == ({"a": {2}, "b": set()}, {GONE: "c"})
    everything = feed.since(0)
    assert everything is not None
    assert everything.topics == {"a": {0, 1, 2}, "b": set()}
    nothing = feed.since(3)
    assert nothing is not None
    assert (nothing.topics, nothing.deleted) == ({}, {})


def test_what_is_too_long_ago_or_yet_to_come_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "KEPT", 2)
    feed = Feed()
    for number in range(4):
        feed.publish({f"t{number}": [0]})
    assert feed.since(1) is None
    assert feed.since(2) is not None
    assert feed.since(5) is None
    feed.restart()
    assert feed.since(4) is None
    assert feed.since(5) is not None
    monkeypatch.setattr(feed_module, "MAX_KEPT_PARTITIONS", 100)
    feed.publish({"large": range(90)})
    feed.publish({"larger": range(90)})
    assert feed.since(5) is None
    assert feed.since(6) is not None


def test_waiting_for_changes_and_for_brokers() -> None:
    async def main() -> None:
        feed = Feed()
        waiting = asyncio.create_task(feed.wait(0, 5))
        await asyncio.sleep(0)
        assert not waiting.done()
        feed.publish()
        await waiting
        await feed.wait(1, 0.01)  # nothing changes: it ends all the same
        epochs = {1: 10, 2: 20}
        applied = asyncio.create_task(feed.until_applied(1, lambda: epochs, 5))
        feed.note_applied(1, 10, 1)
        feed.note_applied(2, 19, 1)  # an earlier life of this broker
        await asyncio.sleep(0)
        assert not applied.done()
        assert not feed.has_applied(2, 20)
        feed.note_applied(2, 20, 1)
        assert await applied
        assert feed.has_applied(2, 20)
        assert not await feed.until_applied(2, lambda: epochs, 0.01)
        del epochs[1], epochs[2]
        assert await feed.until_applied(2, lambda: epochs, 0.01)  # nobody is left to wait for

    asyncio.run(main())


def test_a_broker_hears_what_the_controller_knows() -> None:
    picture = Picture(BrokerConfig({}))
    endpoints = (Endpoint("PLAINTEXT", "example.org", 9092), Endpoint("BROKERS", "::1", 4711))
    for broker_id, rack in ((1, "a"), (2, None)):
        picture.brokers[broker_id] = BrokerNode(broker_id, endpoints, rack, broker_id * 10, "BROKERS")
    picture.stopping[2] = 20
    states = [
        PartitionState([1, 2], [1], 1, 4, 7, [2], [], [2], []),
        PartitionState([2, 1], [], -1, 5, 8, [], [1], [], [2]),
    ]
    topic = Topic("t", UUID(int=5), states, {"retention.ms": "1"})
    picture.put(topic)
    picture.deleted["old"] = Topic("old", UUID(int=6), [])
    picture.configs = {tree.DEFAULT_BROKER: {"x": "1"}, "1": {"y": "2"}, "2": {"z": "3"}}
    feed = Feed()
    feed.publish({"t": [1]}, {GONE: "gone"})

    def told(sequence: int) -> ClusterStateResponse:
        message = answer(picture, feed, 1, sequence)
        return ClusterStateResponse.decode(message.encode(0), 0)

    full = told(-1)
    assert full.is_full
    assert full.sequence == 1
    nodes = brokers_in(full)
    assert nodes[1] == picture.brokers[1]
    assert nodes[2].is_stopping
    assert nodes[2].peer_endpoint == endpoints[1]
    (change,) = topics_in(full)
    assert (change.name, change.topic_id, change.overrides) == ("t", topic.topic_id, topic.overrides)
    assert change.partitions == dict(enumerate(states))
    assert set(deleted_in(full)) == {("old", UUID(int=6)), ("gone", GONE)}
    assert [(each.name, each.value) for each in full.default_configs] == [("x", "1")]
    assert [(each.name, each.value) for each in full.broker_configs] == [("y", "2")]
    part = told(0)
    assert not part.is_full
    assert topics_in(part)[0].partitions == {1: states[1]}
    assert topics_in(told(1)) == []


def test_own_messages_are_what_they_were_after_the_wire() -> None:
    for message in (
        ClusterStateRequest(
            broker_id=3,
            broker_epoch=2**40,
            controller_epoch=7,
            sequence=2**33,
            max_wait_ms=20,
            failed=[ClusterStateRequest.FailedTopic(topic_id=GONE, partitions=[1, 5])],
        ),
        ControlledShutdownRequest(broker_id=3, broker_epoch=2**40),
        ControlledShutdownResponse(error_code=-1, error_message="no", remaining=7),
    ):
        assert type(message).decode(message.encode(0), 0) == message
