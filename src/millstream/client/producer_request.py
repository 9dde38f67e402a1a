"""One Produce request: batches of several partitions to one broker."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.client.batch_builder import Batch
from millstream.client.connection import Connection
from millstream.client.metadata import Metadata
from millstream.client.producer_line import Line
from millstream.client.producer_settings import ProducerSettings
from millstream.model import NO_UUID
from millstream.protocol.messages import ProduceRequest
from millstream.protocol.types import Buffer

LAST_VERSION_WITH_NAMES = 12


@dataclass(slots=True)
class Flight:
    """A request on its way, with at most one batch of each partition."""

    node_id: int
    connection: Connection
    batches: list[tuple[Line, Batch]] = field(default_factory=list)
    topics: dict[str, list[ProduceRequest.PartitionProduceData]] = field(default_factory=dict)
    names: dict[object, str] = field(default_factory=dict)
    """Topics by id, for answers that name them so."""

    def add(self, line: Line, batch: Batch, data: Buffer) -> None:
        self.batches.append((line, batch))
        part = ProduceRequest.PartitionProduceData(index=line.index, records=data)
        self.topics.setdefault(line.topic, []).append(part)


def produce_request(
    flight: Flight, settings: ProducerSettings, metadata: Metadata, *, max_version: int | None = None
) -> tuple[ProduceRequest, int | None]:
    """The request, and the highest version at which it can be sent: topic ids are not always known."""
    topics = []
    for name, parts in flight.topics.items():
        topic_id = metadata.topics[name].id if name in metadata.topics else NO_UUID
        if topic_id == NO_UUID:
            max_version = min(LAST_VERSION_WITH_NAMES, max_version or LAST_VERSION_WITH_NAMES)
        flight.names[topic_id] = name
        topics.append(ProduceRequest.TopicProduceData(name=name, topic_id=topic_id, partition_data=parts))
    request = ProduceRequest(
        transactional_id=settings.transactional_id,
        acks=settings.acks_code,
        timeout_ms=settings.try_timeout_ms,
        topic_data=topics,
    )
    return request, max_version
