"""Where partitions end that other brokers lead: what the lags of groups are measured by.

Groups are coordinated here whose partitions are led elsewhere. Their leaders are asked now and then, and
only where somebody reads the metrics.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING

from millstream.errors import KafkaError
from millstream.model import TopicPartition
from millstream.protocol.messages import ListOffsetsRequest, ListOffsetsResponse

if TYPE_CHECKING:
    from millstream.broker.server import Broker

log = logging.getLogger(__name__)

ASK_MS = 5000
TIMEOUT_MS = 3000
MAX_ASKED = 20_000
LATEST = -1
PURPOSE = "offsets"


class RemoteEnds:
    """The high watermarks of partitions that other brokers lead, as of some seconds ago."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._ends: dict[TopicPartition, int] = {}

    def get(self, partition: TopicPartition) -> int | None:
        return self._ends.get(partition)

    async def ask(self) -> None:
        """Ask the leaders of all partitions that groups coordinated here have committed offsets of."""
        by_leader = self._wanted()
        found: dict[TopicPartition, int] = {}
        for leader, partitions in by_leader.items():
            try:
                found |= await self._ask_one(leader, partitions)
            except KafkaError as error:
                log.info("the ends of %d partitions at broker %d: %s", len(partitions), leader, error.message)
        self._ends = found

    def _wanted(self) -> dict[int, set[TopicPartition]]:
        topics, mine = self._broker.metadata.topics, self._broker.config.node_id
        wanted: dict[int, set[TopicPartition]] = {}
        count = 0
        for shard in list(self._broker.groups):
            for group_id in list(shard.offsets.groups()):
                for (name, index), _ in islice(shard.offsets.of(group_id), MAX_ASKED - count):
                    count += 1
                    topic = topics.get(name)
                    if topic is None or index >= len(topic.partitions):
                        continue
                    leader = topic.partitions[index].leader
                    if leader >= 0 and leader != mine:
                        wanted.setdefault(leader, set()).add(TopicPartition(name, index))
        return wanted

    async def _ask_one(self, leader: int, partitions: set[TopicPartition]) -> dict[TopicPartition, int]:
        by_topic: dict[str, list[int]] = {}
        for name, index in sorted(partitions):
            by_topic.setdefault(name, []).append(index)
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(
                    name=name,
                    partitions=[
                        ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=LATEST)
                        for index in indexes
                    ],
                )
                for name, indexes in by_topic.items()
            ],
            timeout_ms=TIMEOUT_MS,
        )
        response = await self._broker.peers.request(leader, PURPOSE, request, ListOffsetsResponse, TIMEOUT_MS)
        return {
            TopicPartition(topic.name, part.partition_index): part.offset
            for topic in response.topics
            for part in topic.partitions
            if not part.error_code
        }
