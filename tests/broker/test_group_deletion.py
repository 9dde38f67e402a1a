"""What who deletes groups is told when that cannot be done now."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.broker.coordinators import GROUPS_TOPIC
from millstream.broker.handlers.groups import delete_groups
from millstream.broker.router import Context
from millstream.broker.server import Broker
from millstream.config.broker import BrokerConfig
from millstream.coordinator.groups.commits import Caller, Commit
from millstream.errors import CoordinatorNotAvailable, GroupIdNotFound, NotEnoughReplicas
from millstream.model import TopicPartition
from millstream.protocol.messages import DeleteGroupsRequest


def test_a_group_that_cannot_be_deleted_now_is_not_said_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        config = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(tmp_path),
            "offsets.topic.num.partitions": "1",
        }
        async with Broker(BrokerConfig(config)) as broker:
            ctx = Context(broker, None, "PLAINTEXT", 2, "client")  # type: ignore[arg-type]

            async def delete() -> int:
                answer = await delete_groups(ctx, DeleteGroupsRequest(groups_names=["g"]))
                return answer.results[0].error_code

            assert await delete() == GroupIdNotFound.code  # there never was a group
            await broker.coordinators.topic(GROUPS_TOPIC)
            while not broker.groups.is_active(0):
                await asyncio.sleep(0.001)
            commits = [Commit(TopicPartition("t", 0), 5, -1, "")]
            await broker.groups.write(0, lambda shard: shard.commits.commit("g", Caller(), commits))
            with monkeypatch.context() as patch:
                patch.setattr(broker.replicas.leader(GROUPS_TOPIC, 0), "append_internal", refuse)
                assert await delete() == CoordinatorNotAvailable.code
            assert await delete() == 0
            assert await delete() == GroupIdNotFound.code

    asyncio.run(asyncio.wait_for(main(), 30))


def refuse(*_: object, **__: object) -> None:
    raise NotEnoughReplicas
