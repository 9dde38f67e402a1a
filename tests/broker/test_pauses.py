"""Requests that name very many things do not keep all others waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream import pauses
from millstream.broker.coordinators import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from millstream.broker.handlers import configs as config_handlers
from millstream.broker.handlers import fetch as fetch_handlers
from millstream.broker.handlers.configs import alter_configs, describe_configs, incremental_alter_configs
from millstream.broker.handlers.consumer_groups import consumer_group_describe
from millstream.broker.handlers.coordinators import find_coordinator
from millstream.broker.handlers.fetch import fetch
from millstream.broker.handlers.group_offsets import offset_fetch
from millstream.broker.handlers.groups import delete_groups, describe_groups
from millstream.broker.handlers.metadata import describe_topic_partitions, metadata
from millstream.broker.handlers.offsets import delete_records, list_offsets, offset_for_leader_epoch
from millstream.broker.handlers.producers import describe_producers
from millstream.broker.handlers.topics import TOPICS_AT_ONCE, create_partitions, create_topics, delete_topics
from millstream.broker.handlers.transaction_admin import describe_transactions
from millstream.broker.handlers.transactions import add_partitions_to_txn, write_txn_markers
from millstream.broker.router import Context
from millstream.broker.server import Broker
from millstream.config.broker import BrokerConfig
from millstream.net.connection import Connection
from millstream.protocol.messages import (
    AddPartitionsToTxnRequest,
    AlterConfigsRequest,
    ConsumerGroupDescribeRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeProducersRequest,
    DescribeTopicPartitionsRequest,
    DescribeTransactionsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    WriteTxnMarkersRequest,
)

NAMES = [f"name-{number}" for number in range(50)]
INDEXES = list(range(len(NAMES)))
GROUPS = [
    DescribeConfigsRequest.DescribeConfigsResource(resource_type=32, resource_name=name) for name in NAMES
]

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
    (
        offset_fetch,
        5,
        OffsetFetchRequest(
            group_id="group",
            topics=[OffsetFetchRequest.OffsetFetchRequestTopic(name="none-such", partition_indexes=INDEXES)],
        ),
    ),
    (
        metadata,
        4,
        MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in NAMES],
            allow_auto_topic_creation=False,
        ),
    ),
    (
        describe_topic_partitions,
        0,
        DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in NAMES]
        ),
    ),
    (describe_configs, 4, DescribeConfigsRequest(resources=GROUPS)),
    (
        alter_configs,
        2,
        AlterConfigsRequest(
            resources=[
                AlterConfigsRequest.AlterConfigsResource(resource_type=1, resource_name=name, configs=[])
                for name in NAMES
            ],
            validate_only=True,
        ),
    ),
    (
        incremental_alter_configs,
        1,
        IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsRequest.AlterConfigsResource(
                    resource_type=1, resource_name=name, configs=[]
                )
                for name in NAMES
            ],
            validate_only=True,
        ),
    ),
    (
        list_offsets,
        1,
        ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(
                    name="none-such",
                    partitions=[
                        ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=-1)
                        for index in INDEXES
                    ],
                )
            ],
        ),
    ),
    (
        offset_for_leader_epoch,
        4,
        OffsetForLeaderEpochRequest(
            topics=[
                OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                    topic="none-such",
                    partitions=[
                        OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=index, leader_epoch=0)
                        for index in INDEXES
                    ],
                )
            ]
        ),
    ),
    (
        delete_records,
        2,
        DeleteRecordsRequest(
            topics=[
                DeleteRecordsRequest.DeleteRecordsTopic(
                    name="none-such",
                    partitions=[
                        DeleteRecordsRequest.DeleteRecordsPartition(partition_index=index, offset=0)
                        for index in INDEXES
                    ],
                )
            ],
            timeout_ms=1000,
        ),
    ),
    (
        describe_producers,
        0,
        DescribeProducersRequest(
            topics=[DescribeProducersRequest.TopicRequest(name="none-such", partition_indexes=INDEXES)]
        ),
    ),
    (
        add_partitions_to_txn,
        5,
        AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                    transactional_id=name, producer_id=1, producer_epoch=0, verify_only=False, topics=[]
                )
                for name in NAMES
            ]
        ),
    ),
    (
        write_txn_markers,
        1,
        WriteTxnMarkersRequest(
            markers=[
                WriteTxnMarkersRequest.WritableTxnMarker(
                    producer_id=1,
                    producer_epoch=0,
                    transaction_result=True,
                    topics=[
                        WriteTxnMarkersRequest.WritableTxnMarkerTopic(
                            name="none-such", partition_indexes=INDEXES
                        )
                    ],
                    coordinator_epoch=0,
                )
            ]
        ),
    ),
    (
        fetch,
        11,
        FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            topics=[
                FetchRequest.FetchTopic(
                    topic="none-such",
                    partitions=[
                        FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1)
                        for index in INDEXES
                    ],
                )
            ],
        ),
    ),
]


def test_others_have_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "TURN_SECONDS", 0)
    monkeypatch.setattr(fetch_handlers, "MANY_PARTITIONS", len(INDEXES) - 1)
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
                connection = Connection(broker.listeners["PLAINTEXT"])
                await handler(Context(broker, connection, "PLAINTEXT", version, "client"), request)
                assert count >= len(NAMES) - 1, handler
                ticking.cancel()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_topics_are_made_and_deleted_in_turns(tmp_path: Path) -> None:
    """Of many topics in one request a few are under way at a time."""
    names = [f"name-{number}" for number in range(3 * TOPICS_AT_ONCE)]
    requests: list[tuple[Callable[[Context, Any], Any], int, Any]] = [
        (
            create_topics,
            7,
            CreateTopicsRequest(
                topics=[
                    CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
                    for name in names
                ],
                validate_only=True,
            ),
        ),
        (
            create_partitions,
            3,
            CreatePartitionsRequest(
                topics=[CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=2) for name in names],
                timeout_ms=1000,
                validate_only=True,
            ),
        ),
        (delete_topics, 5, DeleteTopicsRequest(topic_names=names, timeout_ms=1000)),
    ]

    async def main() -> None:
        config = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path), "registry": "memory"}
        async with Broker(BrokerConfig(config)) as broker:
            for handler, version, request in requests:
                before, most = len(asyncio.all_tasks()), 0
                context = Context(broker, None, "PLAINTEXT", version, "client")  # type: ignore[arg-type]
                work = asyncio.ensure_future(handler(context, request))
                while not work.done():
                    most = max(most, len(asyncio.all_tasks()) - before)
                    await asyncio.sleep(0)
                assert 0 < most <= TOPICS_AT_ONCE + 5, handler
                answer = work.result()
                results = (
                    getattr(answer, "topics", None) or getattr(answer, "results", None) or answer.responses
                )
                assert [result.name for result in results] == names

    asyncio.run(asyncio.wait_for(main(), 60))


def test_an_answer_tells_so_many_configs_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The three of a group, each with a synonym at least."""
    monkeypatch.setattr(config_handlers, "MAX_DESCRIBED", 20)

    async def main() -> None:
        config = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path), "registry": "memory"}
        async with Broker(BrokerConfig(config)) as broker:
            for include_synonyms, most in ((False, 7), (True, 4)):
                request = DescribeConfigsRequest(resources=GROUPS, include_synonyms=include_synonyms)
                context = Context(broker, None, "PLAINTEXT", 4, "client")  # type: ignore[arg-type]
                answer = await describe_configs(context, request)
                assert [result.resource_name for result in answer.results] == NAMES
                assert [result.error_code for result in answer.results] == [0] * most + [42] * (50 - most)
                assert [len(result.configs) for result in answer.results] == [3] * most + [0] * (50 - most)

    asyncio.run(asyncio.wait_for(main(), 30))
