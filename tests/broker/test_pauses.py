"""Requests that name very many things do not keep all others waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream import pauses
from millstream.broker.coordinators import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from millstream.broker.handlers.consumer_groups import consumer_group_describe
from millstream.broker.handlers.coordinators import find_coordinator
from millstream.broker.handlers.group_offsets import offset_fetch
from millstream.broker.handlers.groups import delete_groups, describe_groups
from millstream.broker.handlers.transaction_admin import describe_transactions
from millstream.broker.router import Context
from millstream.broker.server import Broker
from millstream.config.broker import BrokerConfig
from millstream.protocol.messages import (
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    DescribeTransactionsRequest,
    FindCoordinatorRequest,
    OffsetFetchRequest,
)

NAMES = [f"name-{number}" for number in range(50)]

LONG: list[tuple[Callable[[Context, Any], Any], int, Any]] = [
    (find_coordinator, 6, FindCoordinatorRequest(key_type=0, coordinator_keys=NAMES)),
    (describe_groups, 6, DescribeGroupsRequest(groups=NAMES)),
    (delete_groups, 2, DeleteGroupsRequest(groups_names=NAMES)),
    (
        consumer_group_describe,
        1,
        ConsumerGroupDescribeRequest(group_ids=NAMES, include_authorized_operations=False),
    ),
    (
        offset_fetch,
        9,
        OffsetFetchRequest(
            groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name) for name in NAMES]
        ),
    ),
    (describe_transactions, 0, DescribeTransactionsRequest(transactional_ids=NAMES)),
]


def test_others_have_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "TURN_SECONDS", 0)
    count = 0

    async def tick() -> None:
        nonlocal count
        while True:
            count += 1
            await asyncio.sleep(0)

    async def main() -> None:
        nonlocal count
        config = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
        config |= {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
        async with Broker(BrokerConfig(config)) as broker:
            for topic in (GROUPS_TOPIC, TRANSACTIONS_TOPIC):
                await broker.coordinators.topic(topic)
            while not (broker.groups.is_active(0) and broker.transactions.is_active(0)):
                await asyncio.sleep(0.001)
            for handler, version, request in LONG:
                ticking = asyncio.ensure_future(tick())
                await asyncio.sleep(0)
                count = 0
                await handler(Context(broker, None, "PLAINTEXT", version, "client"), request)  # type: ignore[arg-type]
                assert count >= len(NAMES) - 1, handler
                ticking.cancel()

    asyncio.run(asyncio.wait_for(main(), 30))
