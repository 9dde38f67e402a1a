"""What a consumer asks of the cluster without reading: offsets, topics, partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millstream.client.cluster import Cluster
from millstream.client.consumer_options import ConsumerOptions
from millstream.client.face import Closed
from millstream.client.offsets import EARLIEST, LATEST, Found, list_offsets
from millstream.deadline import Deadline
from millstream.model import TopicPartition


class ConsumerQueries:
    """The part of AsyncConsumer that changes nothing."""

    _cluster: Cluster
    _options: ConsumerOptions
    _is_closed: bool

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline(self._options.request_timeout_ms if timeout is None else timeout * 1000)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the consumer was closed")

    async def beginning_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return await self._offsets_at(EARLIEST, partitions, timeout)

    async def end_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset behind the last record of each partition that this consumer may read."""
        return await self._offsets_at(LATEST, partitions, timeout)

    async def _offsets_at(
        self, place: int, partitions: Iterable[tuple[str, int]], timeout: float | None
    ) -> dict[TopicPartition, int]:
        found = await self.offsets_at({TopicPartition(*each): place for each in partitions}, timeout)
        return {partition: each.offset for partition, each in found.items()}

    async def offsets_at(
        self, times_ms: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, Found]:
        """The first record of each partition at or after a time; its offset is -1 if there is none."""
        self._check_open()
        deadline, isolation = self._deadline(timeout), self._options.isolation
        return await list_offsets(self._cluster, times_ms, deadline, isolation_level=isolation)

    async def partitions_of(self, topic: str, timeout: float | None = None) -> list[TopicPartition]:
        """The partitions of a topic; NoSuchTopic if there is none."""
        self._check_open()
        found = await self._cluster.topic(topic, self._deadline(timeout))
        return [TopicPartition(topic, index) for index in sorted(found.partitions)]

    async def topics(self, timeout: float | None = None) -> list[str]:
        """The names of all topics, internal ones left out."""
        self._check_open()
        metadata = await self._cluster.refresh(None, self._deadline(timeout))
        return sorted(topic.name for topic in metadata.topics.values() if not topic.is_internal)
