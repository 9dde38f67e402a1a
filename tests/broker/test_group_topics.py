"""Patterns that groups subscribe by: what is remembered of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from millstream.broker import group_topics
from millstream.broker.coordinators import GROUPS_TOPIC
from millstream.broker.server import Broker
from millstream.config.broker import BrokerConfig
from millstream.controller.topics import NewTopic
from millstream.coordinator.groups.commits import Caller, Commit
from millstream.coordinator.groups.shard import GroupShard
from millstream.coordinator.shard import Result
from millstream.errors import InvalidRegularExpression
from millstream.model import TopicPartition as Place


def test_what_patterns_match_is_remembered_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may ask for patterns may ask for many that match all topics."""
    monkeypatch.setattr(group_topics, "MAX_REMEMBERED", 20)

    async def main() -> None:
        config = BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)})
        async with Broker(config) as broker:
            for name in "abc":
                await broker.controller.create_topic(NewTopic(name, 1, 1))
            topics = broker.group_topics
            for number in range(50):
                assert (await topics.match(f".{{0,{number + 1}}}")).topics == {"a", "b", "c"}
                assert sum(1 + len(each.topics) for each in topics._matched.values()) == topics._weight <= 20
            assert len(topics._matched) == 5
            with pytest.raises(InvalidRegularExpression):
                await topics.match("a" * 32_768)

    asyncio.run(main())


def test_groups_are_told_of_topics_that_are_others(tmp_path: Path) -> None:
    """Not of leaders that move; but of a topic that was deleted and made anew between two looks."""

    async def main() -> None:
        config = BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)})
        async with Broker(config) as broker:
            await broker.coordinators.topic(GROUPS_TOPIC)
            topic = await broker.controller.create_topic(NewTopic("t", 1, 1))
            index = broker.coordinators.partition_of(GROUPS_TOPIC, "g")
            while not broker.groups.is_active(index):
                await asyncio.sleep(0.001)
            await broker.groups.write(
                index, lambda shard: shard.commits.commit("g", Caller(), [Commit(Place("t", 0), 7, -1, "")])
            )
            version = broker.group_topics.version
            broker.metadata.put([topic])
            await asyncio.sleep(0.05)
            assert broker.group_topics.version == version
            shard = broker.groups.shard(index)
            assert shard is not None
            assert shard.offsets.count("g") == 1
            broker.metadata.put([replace(topic, topic_id=uuid4())])
            await asyncio.sleep(0.05)
            assert broker.group_topics.version == version + 1
            assert shard.offsets.count("g") == 0
            broker.metadata.put([topic])

    asyncio.run(main())


def test_what_was_committed_before_a_topic_was_made_anew_goes_and_what_comes_after_stays(
    tmp_path: Path,
) -> None:
    """However short after: a commit that waits to be written with others was for the old topic."""

    def committing(group: str) -> Callable[[GroupShard], Result[Any]]:
        return lambda shard: shard.commits.commit(group, Caller(), [Commit(Place("t", 0), 7, -1, "")])

    async def main() -> None:
        config = BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)})
        async with Broker(config) as broker:
            await broker.coordinators.topic(GROUPS_TOPIC)
            topic = await broker.controller.create_topic(NewTopic("t", 1, 1))
            index = broker.coordinators.partition_of(GROUPS_TOPIC, "g")
            while not broker.groups.is_active(index):
                await asyncio.sleep(0.001)
            await broker.groups.write(index, committing("before"))
            broker.groups.write_with_others(index, committing("on its way"), lambda error: error)
            broker.metadata.put([replace(topic, topic_id=uuid4())])
            await broker.groups.write(index, committing("after"))
            shard = broker.groups.shard(index)
            assert shard is not None
            assert sorted(shard.offsets.groups()) == ["after", "before", "on its way"]
            await asyncio.sleep(0.05)
            assert shard.offsets.groups() == ["after"]
            broker.metadata.put([topic])

    asyncio.run(main())
