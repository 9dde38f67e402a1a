"""Metadata of all topics for many clients at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millstream import pauses
from millstream.broker.handlers import metadata as metadata_handlers
from millstream.broker.handlers.metadata import metadata
from millstream.broker.router import Context
from millstream.broker.server import Broker
from millstream.controller.topics import NewTopic
from millstream.protocol.messages import MetadataRequest
from tests.broker.test_fetch import broker_in

CLIENTS, TOPICS = 20, 5


async def ask(broker: Broker) -> list[str | None]:
    context = Context(broker, None, "PLAINTEXT", 9, None)  # type: ignore[arg-type]
    return [topic.name for topic in (await metadata(context, MetadataRequest(topics=None))).topics]


def test_topics_are_told_once_for_all_who_wait_and_never_as_they_were_before_somebody_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "TURN_SECONDS", 0)
    tell, told = metadata_handlers._topic, 0

    def counted(*args: Any) -> Any:
        nonlocal told
        told += 1
        return tell(*args)

    monkeypatch.setattr(metadata_handlers, "_topic", counted)

    async def main() -> None:
        nonlocal told
        async with asyncio.timeout(60), broker_in(tmp_path) as broker:
            names = [f"t{number}" for number in range(TOPICS)]
            for name in names:
                await broker.controller.create_topic(NewTopic(name, 1, 1))
            asking = [asyncio.ensure_future(ask(broker)) for _ in range(CLIENTS)]
            await asyncio.sleep(0)
            asking[0].cancel()  # its client has gone
            asking[CLIENTS // 2].cancel()
            await broker.controller.create_topic(NewTopic("new", 1, 1))
            late = await ask(broker)
            assert sorted(filter(None, late)) == sorted([*names, "new"])
            answers = await asyncio.gather(*asking, return_exceptions=True)
            for answer in answers:
                assert isinstance(answer, asyncio.CancelledError) or set(names) <= set(answer)  # type: ignore[arg-type]
            assert sum(isinstance(answer, list) for answer in answers) == CLIENTS - 2
            assert told <= 4 * (TOPICS + 1)
            assert not broker.all_topics._made  # what nobody waits for is not kept

    asyncio.run(main())
