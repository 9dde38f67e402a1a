"""Patterns that groups subscribe by: what is remembered of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.broker import group_topics
from millstream.broker.server import Broker
from millstream.config.broker import BrokerConfig
from millstream.controller.topics import NewTopic
from millstream.errors import InvalidRegularExpression


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
