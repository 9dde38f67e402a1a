"""A task's part of a write: its rows as records, in a transaction that it leaves open."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.client.cluster import Cluster
from millstream.client.configs import Resource, describe_configs
from millstream.client.errors import NoSuchTopic
from millstream.client.producer_blocking import Producer
from millstream.client.producer_columns import Deliveries
from millstream.client.producer_identity import HandedOver
from millstream.deadline import Deadline
from millstream.errors import (
    ClusterAuthorizationFailed,
    MessageTooLarge,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from millstream.streams.sink_columns import gathered
from millstream.streams.sink_decisions import Decision, last_decision
from millstream.streams.sink_errors import BadRow, MissingTopic
from millstream.streams.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

MAX_TIMEOUT_KEY = "transaction.max.timeout.ms"
USUAL_MAX_TIMEOUT_MS = 900_000
BROKER_WAIT_MS = 2_000
"""How long one broker is asked for its limit. It may be gone; what the others say is enough."""
GATHERED_BYTES = 8 << 20
"""How many bytes of Spark's batches, of ten thousand rows each, are sent together: parted by partition, each
for itself would make small batches for brokers."""
TOPIC_WAIT_MS = 5_000
"""How long a topic that brokers do not know is waited for: they may be creating it."""

_max_timeouts_ms: dict[str, int] = {}
"""By cluster, for the tasks to come in this process."""


class RowWriter:
    """Sends the rows of one task. `transactional_id` None: at least once, without a transaction."""

    def __init__(self, options: SinkOptions, transactional_id: str | None = None) -> None:
        self._options = options
        self._transactional_id = transactional_id
        self._topics: set[str] = set()

    def write(self, batches: Iterator[pa.RecordBatch]) -> HandedOver | None:
        """Write all rows; the transaction, if there is one, stays open. An error aborts it."""
        with self._producer() as producer:
            if self._transactional_id is None:
                self._send(producer, batches, checks=True)
                return None
            producer.begin_transaction()
            self._send(producer, batches, checks=False)  # a failed record fails the hand-over
            return producer.hand_over_transaction(self._options.timeout_ms / 1000)

    def _producer(self) -> Producer:
        given = {"client_id": "millstream-sink", **self._options.producer}
        if self._transactional_id is not None:
            given["transactional_id"] = self._transactional_id
            if "transaction_timeout_ms" not in given:
                given["transaction_timeout_ms"] = max_timeout_ms(self._options)
        return Producer(self._options.bootstrap, **given)

    def _send(self, producer: Producer, batches: Iterator[pa.RecordBatch], *, checks: bool) -> None:
        under_way: deque[Deliveries] = deque()
        for topic, rows in gathered(batches, self._options.topic, GATHERED_BYTES):
            self._ensure(producer, topic)
            try:
                sent = producer.send_arrow(topic, rows)
            except MessageTooLarge as error:
                raise BadRow(
                    f"topic {topic}: {error}: raise kafka.max.request.size, and the topic's max.message.bytes"
                ) from None
            if checks:
                under_way.append(sent)
            while under_way and under_way[0].done():
                under_way.popleft().result(0)
        if checks:
            producer.flush()
            for sent in under_way:
                sent.result(0)

    def _ensure(self, producer: Producer, topic: str) -> None:
        """The producer's own connections will do, unless brokers are away."""
        if topic in self._topics:
            return
        try:
            producer.partitions_of(topic, TOPIC_WAIT_MS / 1000)
        except (NoSuchTopic, RequestTimedOut) as error:
            if _is_unknown(error):
                raise missing(topic) from None
            run(ensure_topic(self._options, topic))
        self._topics.add(topic)


def first_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch] | None:
    """The batches from the first one with rows on; None if there are no rows."""
    for batch in batches:
        if batch.num_rows:
            return chain([batch], batches)
    return None


def look_up(options: SinkOptions, query: str) -> Decision | None:
    """The last decision of a query."""

    async def ask() -> Decision | None:
        async with Cluster(options.bootstrap) as cluster:
            return await last_decision(cluster, query, Deadline(options.timeout_ms))

    return run(ask())


async def ensure_topic(options: SinkOptions, topic: str) -> None:
    """Know a topic, or have it created where brokers do that; MissingTopic if they do not."""
    async with Cluster(options.bootstrap) as cluster:
        await cluster.refresh([], Deadline(options.timeout_ms))  # brokers may be away for a while
        try:
            await cluster.topic(topic, Deadline(TOPIC_WAIT_MS), allow_auto_creation=True)
        except (NoSuchTopic, RequestTimedOut) as error:
            if not _is_unknown(error):
                raise
            raise missing(topic) from None


def _is_unknown(error: Exception) -> bool:
    return isinstance(error.__cause__ or error, UnknownTopicOrPartition)


def missing(topic: str) -> MissingTopic:
    return MissingTopic(
        f"topic {topic} does not exist and brokers do not create it: create it first, with "
        f"`millstream topic create {topic}`, or check the name"
    )


def max_timeout_ms(options: SinkOptions) -> int:
    """The longest time that brokers let a transaction be open; the usual one, where they do not tell.

    It is kept once all brokers have answered.
    """
    known = _max_timeouts_ms.get(options.bootstrap)
    if known is None:
        known, is_complete = run(ask_max_timeout_ms(options))
        if is_complete:
            _max_timeouts_ms[options.bootstrap] = known
    return known


async def ask_max_timeout_ms(options: SinkOptions) -> tuple[int, bool]:
    """The least that brokers say, and whether none of them was away."""
    is_complete = True
    async with Cluster(options.bootstrap) as cluster:
        deadline = Deadline(options.timeout_ms)
        await cluster.refresh([], deadline)
        found = []
        for node in sorted(cluster.metadata.nodes):
            try:
                within = deadline.sooner(BROKER_WAIT_MS)
                configs = await describe_configs(
                    cluster, Resource.BROKER, str(node), within, keys=[MAX_TIMEOUT_KEY]
                )
            except ClusterAuthorizationFailed:
                continue
            except RequestTimedOut:
                is_complete = False
                continue
            found += [int(each.value) for each in configs if each.value]
        return min(found, default=USUAL_MAX_TIMEOUT_MS), is_complete


def run(work: Coroutine[Any, Any, T]) -> T:
    """Do some asking on a loop of its own."""
    return asyncio.run(work)
