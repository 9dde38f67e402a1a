"""What happens while a broker takes a large topic, partition by partition, with pauses in between."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millstream import pauses
from millstream.cluster.replicas import Replicas
from millstream.model import TopicPartition
from millstream.storage.log import Log
from tests.cluster.nodes import Nodes, run

COUNT = 8


@pytest.fixture(autouse=True)
def _pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one after each partition."""
    monkeypatch.setattr(pauses, "TURN_SECONDS", 0.0)


async def half_taken(nodes: Nodes, held: Replicas) -> asyncio.Task[None]:
    """A topic that comes, of which some partitions are held by now."""
    applying = asyncio.create_task(nodes.create(partitions=COUNT))
    while len(held) < 2:
        await asyncio.sleep(0)
    assert len(held) < COUNT
    return applying


def test_a_session_that_is_lost_meanwhile_leaves_nothing_led(tmp_path: Path) -> None:
    """Also not those partitions that come after the pause in which it was lost: others may lead them."""

    async def test(nodes: Nodes) -> None:
        held = nodes[1].replicas
        applying = await half_taken(nodes, held)
        held.session_lost()
        await applying
        assert [each.name.partition for each in held if each.is_leader] == []
        await nodes.tell()
        assert sum(each.is_leader for each in held) == COUNT
        await nodes[1].send(b"a", index=COUNT - 1)

    run(test, tmp_path)


def test_a_topic_that_is_deleted_meanwhile_is_not_held_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on the controller's own broker, which deletes its records in the controller's turn."""

    async def test(nodes: Nodes) -> None:
        held, store = nodes[2].replicas, nodes[2].store
        opened: list[str] = []
        create = store.create

        def creating(name: TopicPartition, *arguments: Any, **options: Any) -> Log:
            opened.append(str(name))
            return create(name, *arguments, **options)

        monkeypatch.setattr(store, "create", creating)
        applying = await half_taken(nodes, held)
        known = list(opened)
        await held.drop(nodes.topic)
        await applying
        assert opened == known
        assert len(held) == 0

    run(test, tmp_path)
