"""A topic that is made, written, read and deleted over and over, under one name.

Each time it must be empty at first: no record of an earlier topic of that name may come back, whatever
crash or power loss fell between the deletion and the removal of its files. All is asked for by topic id
(KIP-516), so that a request that comes late does nothing to a later topic.
"""

from __future__ import annotations

import asyncio
from random import Random

from millstream.errors import TopicAlreadyExists, UnknownTopicId, error_for
from millstream.model import NO_UUID
from millstream.protocol.batch import decode_records, encode_batch
from millstream.protocol.messages import DeleteTopicsRequest, FetchRequest, ProduceRequest
from millstream.protocol.record import Record
from tests.simulation.client import LATEST, RETRY_S, Client, Refused
from tests.simulation.history import History


class Churn:
    """The life of such a topic."""

    def __init__(self, client: Client, history: History, random: Random) -> None:
        self.client = client
        self.history = history
        self.random = random
        self.rounds = 0
        self.is_over = False
        self._topic_id = NO_UUID
        self._sent: set[bytes] = set()

    async def run(self) -> None:
        while not self.is_over:
            await self._create()
            self._topic_id = await self.client.topic_id()
            self._sent = set()
            for number in range(self.random.randint(0, 5)):
                await self._produce(f"{self.rounds}-{number}".encode())
            await self._read()
            await asyncio.sleep(self.random.uniform(0.0, 3.0))
            await self._delete()
            self.rounds += 1
            await asyncio.sleep(self.random.uniform(0.0, 0.3))

    async def _create(self) -> None:
        try:
            await self.client.create_topic(1, {})
        except Refused as refused:
            # An attempt whose answer was lost has made it already.
            if refused.code != TopicAlreadyExists.code:
                self._complain(f"could not be created: {refused}")

    async def _delete(self) -> None:
        topic = DeleteTopicsRequest.DeleteTopicState(topic_id=self._topic_id)
        while True:
            answer = await self.client.until_done(DeleteTopicsRequest(topics=[topic], timeout_ms=5000), 6)
            code = answer.responses[0].error_code
            if code in (0, UnknownTopicId.code):  # an attempt whose answer was lost has done it
                return
            if not error_for(code).retriable:
                self._complain(f"could not be deleted: {error_for(code).__name__}")
                return
            await asyncio.sleep(RETRY_S)

    async def _produce(self, value: bytes) -> None:
        batch = encode_batch([Record(value=value, timestamp=1_750_000_000_000)])
        partition = ProduceRequest.PartitionProduceData(index=0, records=batch)
        topic = ProduceRequest.TopicProduceData(topic_id=self._topic_id, partition_data=[partition])
        self._sent.add(value)
        while True:
            answer = await self.client.until_done(
                ProduceRequest(acks=-1, timeout_ms=3000, topic_data=[topic]), 13
            )
            code = answer.responses[0].partition_responses[0].error_code
            if not code:
                return
            if not error_for(code).retriable:
                self._complain(f"refused {value!r}: {error_for(code).__name__}")
                return
            await asyncio.sleep(RETRY_S)

    async def _read(self) -> None:
        """All that is there was sent in this round."""
        end = await self.client.offset(0, LATEST)
        position = 0
        while position < end:
            partition = FetchRequest.FetchPartition(
                partition=0, fetch_offset=position, partition_max_bytes=100_000
            )
            topic = FetchRequest.FetchTopic(topic_id=self._topic_id, partitions=[partition])
            answer = await self.client.until_done(
                FetchRequest(max_wait_ms=100, min_bytes=1, topics=[topic]), 13
            )
            found = answer.responses[0].partitions[0]
            if found.error_code or not found.records:
                await asyncio.sleep(RETRY_S)
                end = await self.client.offset(0, LATEST)
                continue
            for record in decode_records(found.records):
                position = record.offset + 1
                if record.value not in self._sent:
                    self._complain(f"holds {record.value!r} in round {self.rounds}")

    def _complain(self, text: str) -> None:
        self.history.complaints.append(f"topic {self.client.topic} {text}")
