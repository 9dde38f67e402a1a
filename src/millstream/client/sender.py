"""Sends records to partitions in order, each once: an idempotent producer at its smallest."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from millstream.client.cluster import Cluster
from millstream.client.deadline import Deadline
from millstream.client.errors import raise_for
from millstream.client.producing import ACKS_ALL, Produced, produce
from millstream.errors import KafkaError
from millstream.model import TopicPartition
from millstream.protocol.batch import Codec, encode_batch, murmur2
from millstream.protocol.messages import InitProducerIdRequest, InitProducerIdResponse
from millstream.protocol.record import Record

SEQUENCES = 2**31


class Sender:
    """Writes batches; those of one partition one after the other, those of several at once.

    With acks=all every batch carries a producer id and a sequence, so that one whose answer was lost
    is not written twice. After an error the fate of a partition's batch is unknown and its next
    sequence with it: that partition takes no more batches.
    """

    def __init__(self, cluster: Cluster, *, acks: int = ACKS_ALL, codec: Codec = Codec.NONE) -> None:
        self._cluster = cluster
        self._acks = acks
        self._codec = codec
        self._producer_id = -1
        self._producer_epoch = -1
        self._sequences: dict[TopicPartition, int] = defaultdict(int)
        self._order: dict[TopicPartition, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._failures: dict[TopicPartition, KafkaError] = {}

    async def start(self, deadline: Deadline) -> None:
        """Get a producer id, where one is needed."""
        if self._acks != ACKS_ALL or self._producer_id >= 0:
            return

        async def attempt() -> InitProducerIdResponse:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
            response = await self._cluster.request(None, request, InitProducerIdResponse, deadline)
            raise_for(response.error_code, None, "a producer id")
            return response

        response = await self._cluster.retrying(attempt, deadline)
        self._producer_id, self._producer_epoch = response.producer_id, response.producer_epoch

    async def send(
        self, partition: TopicPartition, records: Sequence[Record], deadline: Deadline
    ) -> Produced:
        """Write records as one batch, behind those sent to the partition before."""
        async with self._order[partition]:
            failure = self._failures.get(partition)
            if failure is not None:
                raise failure
            sequence = self._sequences[partition] if self._producer_id >= 0 else -1
            batch = encode_batch(
                records,
                codec=self._codec,
                producer_id=self._producer_id,
                producer_epoch=self._producer_epoch,
                base_sequence=sequence,
            )
            try:
                produced = await produce(self._cluster, partition, batch, deadline, acks=self._acks)
            except KafkaError as error:
                self._failures[partition] = error
                raise
            if sequence >= 0:
                self._sequences[partition] = (sequence + len(records)) % SEQUENCES
            return produced


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition that Java's client chooses for a key, so that all clients agree."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
