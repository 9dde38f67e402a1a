"""A replicated topic that is made, written, read and deleted over and over, under one name.

What was acknowledged is there, nothing of an earlier topic of that name is, and neither is lost to one: not
by brokers that hear late of a deletion, or never. All is asked for by topic id (KIP-516), so that a request
that comes late does nothing to a later topic.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

from millstream.errors import TopicAlreadyExists, UnknownTopicId, error_for
from millstream.model import NO_UUID
from millstream.protocol.batch import decode_records, encode_batch
from millstream.protocol.messages import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    FetchRequest,
    MetadataRequest,
    ProduceRequest,
)
from millstream.protocol.record import Record
from tests.simulation.brokers import Brokers, NoWay
from tests.simulation.client import RETRY_S
from tests.simulation.history import History

NAME = "churned"


class ClusterChurn:
    """The lives of such a topic, which has one partition."""

    def __init__(
        self, make_brokers: Callable[[], Brokers], history: History, random: Random, replicas: int
    ) -> None:
        """`make_brokers` makes a client that knows nothing yet, and so no leader epochs of earlier topics."""
        self.counts: Counter[str] = Counter()
        self.is_over = False
        self._make_brokers = make_brokers
        self._brokers = make_brokers()
        self._history = history
        self._random = random
        self._replicas = replicas
        self._topic_id = NO_UUID
        self._before: set[UUID] = set()
        """The ids that the topic had before."""
        self._acked: list[bytes] = []
        self._sent: set[bytes] = set()

    async def run(self) -> None:
        """The last topic stays, once all that was acknowledged has been read."""
        while True:
            self._brokers = self._make_brokers()
            await self._create()
            self._acked, self._sent = [], set()
            for number in range(self._random.randint(1, 5)):
                await self._produce(f"{self.counts['topics churned']}-{number}".encode())
            await self._read()
            if self.is_over:
                return
            await asyncio.sleep(self._random.choice((0.1, 3.0)) * self._random.random())
            await self._delete()
            self._before.add(self._topic_id)
            self.counts["topics churned"] += 1
            await asyncio.sleep(self._random.choice((0.0, 0.3)) * self._random.random())

    async def _ask(self, ask: Callable[[Any, int], Any], request: Any, version: int) -> Any:
        """Ask until it is answered."""
        while True:
            try:
                return await ask(request, version)
            except OSError:
                await asyncio.sleep(RETRY_S * self._random.random())

    async def _create(self) -> None:
        topic = CreateTopicsRequest.CreatableTopic(
            name=NAME, num_partitions=1, replication_factor=self._replicas
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=5000)
        while True:
            found = (await self._ask(self._brokers.ask_controller, request, 7)).topics[0]
            self._topic_id = UUID(int=found.topic_id.int)
            if found.error_code == TopicAlreadyExists.code:  # an attempt whose answer was lost has made it
                self._topic_id = await self._find_id()
            if self._topic_id not in (NO_UUID, *self._before):
                return
            self._brokers.forget_controller()
            await asyncio.sleep(RETRY_S)

    async def _find_id(self) -> UUID:
        asked = MetadataRequest.MetadataRequestTopic(name=NAME)
        request = MetadataRequest(topics=[asked], allow_auto_topic_creation=False)
        found = (await self._ask(self._brokers.ask_any, request, 12)).topics[0]
        return UUID(int=found.topic_id.int)

    async def _delete(self) -> None:
        topic = DeleteTopicsRequest.DeleteTopicState(topic_id=self._topic_id)
        request = DeleteTopicsRequest(topics=[topic], timeout_ms=5000)
        while True:
            answer = await self._ask(self._brokers.ask_controller, request, 6)
            code = answer.responses[0].error_code
            if code in (0, UnknownTopicId.code):  # an attempt whose answer was lost has done it
                return
            if not error_for(code).retriable:
                self._complain(f"could not be deleted: {error_for(code).__name__}")
                return
            self._brokers.forget_controller()
            await asyncio.sleep(RETRY_S)

    async def _ask_leader(self, request: Any, version: int) -> Any:
        try:
            return await self._brokers.ask_leader(NAME, 0, request, version)
        except NoWay:  # a broker that hears late may have told of an earlier topic's leader epochs
            self._brokers = self._make_brokers()
            raise

    async def _refused(self, code: int) -> None:
        if not error_for(code).retriable:
            self._complain(f"is refused for good: {error_for(code).__name__}")
        self._brokers.forget_leader(NAME, 0)
        await asyncio.sleep(RETRY_S)

    async def _produce(self, value: bytes) -> None:
        partition = ProduceRequest.PartitionProduceData(
            index=0, records=encode_batch([Record(value=value, timestamp=1_750_000_000_000)])
        )
        topic = ProduceRequest.TopicProduceData(topic_id=self._topic_id, partition_data=[partition])
        request = ProduceRequest(acks=-1, timeout_ms=3000, topic_data=[topic])
        self._sent.add(value)
        while True:
            answer = await self._ask(self._ask_leader, request, 13)
            code = answer.responses[0].partition_responses[0].error_code
            if not code:
                self._acked.append(value)
                self.counts["churned acks"] += 1
                return
            await self._refused(code)

    async def _read(self) -> None:
        """Until all that was acknowledged has been found, in order; nothing else is there."""
        position, left = 0, list(self._acked)
        while left:
            partition = FetchRequest.FetchPartition(
                partition=0, fetch_offset=position, partition_max_bytes=100_000
            )
            topic = FetchRequest.FetchTopic(topic_id=self._topic_id, partitions=[partition])
            request = FetchRequest(max_wait_ms=100, min_bytes=1, topics=[topic])
            answer = await self._ask(self._ask_leader, request, 13)
            found = answer.responses[0].partitions[0]
            if found.error_code:
                await self._refused(found.error_code)
                continue
            for record in decode_records(found.records or b""):
                position = record.offset + 1
                if record.value not in self._sent:
                    self._complain(f"holds {record.value!r}, which was not sent to it")
                elif left and record.value == left[0]:
                    del left[0]

    def _complain(self, text: str) -> None:
        self._history.complaints.append(f"the topic {NAME} {text}")
