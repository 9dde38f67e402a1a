"""The decisions of a query: which batch is committed, and by which transactions.

They lie in a topic of one partition, compacted, one record for each step: a decision names all transactions
of its batch; the same batch once more, as done, says that all of them were committed. Only the last record
counts. Records are written in transactions under the query's own id, so that a driver which another one has
followed cannot write.

The record, in JSON: {"batch": 7, "run": "4be0a1f2", "is_done": false, "transactions": [[partition, attempt,
producer id, epoch, version], ...]}.
"""

from __future__ import annotations

from typing import Self

import msgspec

from millstream.client.cluster import Cluster
from millstream.client.fetch_session import FetchLimits
from millstream.client.metadata import Topic
from millstream.client.offsets import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offsets
from millstream.client.producer import AsyncProducer
from millstream.client.producer_identity import HandedOver
from millstream.client.topics import create_topic, delete_topic
from millstream.deadline import Deadline
from millstream.errors import (
    KafkaError,
    LeaderNotAvailable,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from millstream.model import TopicPartition
from millstream.protocol.columns import decode_columns
from millstream.streams.reading.fetching import Fetched, fetch
from millstream.streams.sink_names import Run, owner_of, topic_of

KEY = b"decision"
CONFIGS = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20), "retention.ms": "-1"}
REPLICAS = 3
"""Where there are so many brokers, whatever other topics have: a lost decision is a torn batch."""
OWNER_TIMEOUT_MS = 60_000
LOOK_BACK = 8
"""How far from the end the last record is looked for at first: markers and aborted records lie between."""
POLL_MS = 500

MOST_BYTES = 32 << 20
"""Compressed, a decision for 100,000 tasks is less than the 1 MB that brokers take."""

Place = tuple[int, int, int, int, int]
"""Partition, attempt, producer id, epoch, transaction version."""


class Decision(msgspec.Struct, frozen=True):
    """What the record says."""

    batch: int
    run: str
    is_done: bool
    transactions: list[Place] = []

    def handed_over(self, query: str) -> list[HandedOver]:
        """The transactions, as they are ended."""
        run = Run(query, self.run)
        return [
            HandedOver(run.transactional_id(partition, attempt), producer_id, epoch, version >= 2)
            for partition, attempt, producer_id, epoch, version in self.transactions
        ]

    def done(self) -> Decision:
        return Decision(self.batch, self.run, is_done=True)


async def last_decision(cluster: Cluster, query: str, deadline: Deadline) -> Decision | None:
    """The last decision of a query as far as it shows by now; None if there is none."""
    if not await _is_known(cluster, topic_of(query), deadline):
        return None
    return await _read_last(cluster, query, READ_COMMITTED, deadline)


async def _is_known(cluster: Cluster, name: str, deadline: Deadline) -> bool:
    """Whether a broker knows a topic at this moment."""
    metadata = await cluster.refresh([name], deadline)
    try:
        metadata.topic(name)
    except LeaderNotAvailable:
        return True
    except UnknownTopicOrPartition:
        return False
    return True


async def _read_last(
    cluster: Cluster, query: str, isolation_level: int, deadline: Deadline
) -> Decision | None:
    """The last committed record up to an end. The work does not grow with the number of records."""
    partition = TopicPartition(topic_of(query), 0)
    first = (await list_offsets(cluster, {partition: EARLIEST}, deadline))[partition].offset
    found = await list_offsets(cluster, {partition: LATEST}, deadline, isolation_level=isolation_level)
    end, look_back = found[partition].offset, LOOK_BACK
    while True:
        start = max(first, end - look_back)
        value = await _last_value(cluster, partition, start, end, deadline)
        if value is not None:
            return msgspec.json.decode(value, type=Decision)
        if start == first:
            return None
        look_back *= LOOK_BACK


async def _last_value(
    cluster: Cluster, partition: TopicPartition, start: int, end: int, deadline: Deadline
) -> bytes | None:
    """The value of the last committed record from `start` on, once all up to `end` was looked at."""
    last, position = None, start

    async def attempt() -> Fetched:
        try:
            leader = await cluster.leader(*partition, deadline)
            (fetched,) = await fetch(
                cluster,
                leader.id,
                {partition: position},
                deadline,
                limits=FetchLimits(max_wait_ms=POLL_MS),
                isolation_level=READ_COMMITTED,
            )
            if fetched.error is not None:
                raise fetched.error
        except KafkaError:
            cluster.forget(partition.topic)  # it may be led elsewhere by now
            raise
        return fetched

    while position < end:
        fetched = await cluster.retrying(attempt, deadline)
        columns = decode_columns(fetched.records, from_offset=position, aborted=fetched.aborted)
        if len(columns):
            last = columns.values[len(columns) - 1]
        position = columns.next_offset
        if deadline.has_passed:
            raise RequestTimedOut(f"the decisions in {partition.topic} could not be read in time")
    return last


async def forget(cluster: Cluster, query: str, deadline: Deadline) -> None:
    """Delete a query's decisions, if there are any."""
    try:
        await delete_topic(cluster, topic_of(query), deadline)
    except UnknownTopicOrPartition:
        pass


class Owner:
    """A driver that has a query: none before it can write a decision any more.

    What stands in `last` when the `async with` begins is therefore what the next decision follows on.
    """

    def __init__(self, cluster: Cluster, bootstrap: str, query: str, deadline: Deadline) -> None:
        self.query = query
        self.last: Decision | None = None
        self._cluster = cluster
        self._deadline = deadline
        self._producer = AsyncProducer(
            bootstrap,
            client_id="millstream-sink",
            transactional_id=owner_of(query),
            transaction_timeout_ms=OWNER_TIMEOUT_MS,
            linger_ms=0,
            compression="gzip",
            max_request_bytes=MOST_BYTES,
            max_block_ms=deadline.remaining_ms,
            auto_create_topics=False,
        )

    async def __aenter__(self) -> Self:
        await self._ensure_topic()
        await self._producer.start()
        try:  # with the id taken no decision is under way: what is written is all there is
            self.last = await _read_last(self._cluster, self.query, READ_UNCOMMITTED, self._deadline)
        except BaseException:
            await self._producer.close()
            raise
        return self

    async def _ensure_topic(self) -> None:
        """Only the controller's word counts for a topic that is not there: a broker may not know it yet."""
        name, deadline = topic_of(self.query), self._deadline
        if not await _is_known(self._cluster, name, deadline):
            try:
                replicas = min(REPLICAS, len(self._cluster.metadata.nodes))
                await create_topic(
                    self._cluster,
                    name,
                    deadline,
                    partitions=1,
                    replication_factor=replicas,
                    configs={**CONFIGS, "min.insync.replicas": str(max(1, replicas - 1))},
                )
            except TopicAlreadyExists:
                await self._cluster.retrying(self._shown, deadline)

    async def _shown(self) -> Topic:
        """The topic, which must not come about by being asked for: it would not be compacted."""
        name = topic_of(self.query)
        return (await self._cluster.refresh([name], self._deadline)).topic(name)

    async def __aexit__(self, *_: object) -> None:
        await self._producer.close()

    async def write(self, decision: Decision) -> None:
        """Make a decision durable; ProducerFenced if another driver has the query by now."""
        async with self._producer.transaction():
            await self._producer.send(
                topic_of(self.query), msgspec.json.encode(decision), key=KEY, partition=0
            )
        self.last = decision
