"""Deletes the records of partitions before an offset: one request to each leader, until all are done."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from millstream.client.cluster import UNKNOWN_TOPIC_WAIT_MS as NEW_MS
from millstream.client.cluster import Cluster
from millstream.client.errors import NoSuchTopic, raise_for
from millstream.client.offsets import LATEST, ask_leader
from millstream.deadline import Deadline
from millstream.errors import (
    KafkaError,
    OffsetNotAvailable,
    OffsetOutOfRange,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from millstream.model import TopicPartition
from millstream.protocol.messages import DeleteRecordsRequest, DeleteRecordsResponse

END = -1
"""For an offset: the high watermark."""

ANSWER_MS = 1000
"""How much of a try's time is left for the broker's answer; a quarter of it, if that is less."""

Result = int | KafkaError


async def delete_records(
    cluster: Cluster, offsets: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, Result]:
    """Delete what lies before each offset (END: all that is there now); gives the new start offsets."""
    deletion = _Deletion(cluster, offsets, deadline)
    try:
        await cluster.retrying(deletion.attempt, deadline)
    except KafkaError as error:
        deletion.give_up(error)
    return {partition: deletion.results[partition] for partition in offsets}


class _Deletion:
    """What has become of each partition. One that has to wait holds up none of the others.

    An END is looked up once: of a try whose answer was lost nobody knows whether it was done, and the next
    one must not delete what was written after it.
    """

    def __init__(self, cluster: Cluster, offsets: Mapping[TopicPartition, int], deadline: Deadline) -> None:
        self.results: dict[TopicPartition, Result] = {}
        self._cluster = cluster
        self._deadline = deadline
        self._wanted = dict(offsets)
        self._before = {partition: offset for partition, offset in offsets.items() if offset != END}
        self._errors: dict[TopicPartition, KafkaError] = {}
        """What may be tried again."""
        self._unknown_until: dict[TopicPartition, Deadline] = {}
        """When those that the cluster does not know are no longer taken to be new."""

    async def attempt(self) -> None:
        """Ask all leaders once; raise if some partitions are to be tried again."""
        self._errors.clear()
        by_leader = await self._led()
        await asyncio.gather(*(self._ask(leader, parts) for leader, parts in by_leader.items()))
        for error in self._errors.values():
            raise error

    def give_up(self, error: KafkaError) -> None:
        """Say of what is not done why."""
        for partition in self._left():
            own = self._errors.get(partition, error)
            if isinstance(error, RequestTimedOut) and own is not error:
                timeout_ms = self._deadline.timeout_ms
                own = RequestTimedOut(f"not done in {timeout_ms:.0f} ms; the last error was: {own}")
            self.results[partition] = own

    def _left(self) -> list[TopicPartition]:
        return [partition for partition in self._wanted if partition not in self.results]

    async def _led(self) -> dict[int, list[TopicPartition]]:
        by_topic: dict[str, list[TopicPartition]] = defaultdict(list)
        for partition in self._left():
            by_topic[partition.topic].append(partition)
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)

        async def find(name: str, partitions: Sequence[TopicPartition]) -> None:
            try:
                await self._cluster.topic(name, self._deadline)
            except KafkaError as error:
                self._fail(partitions, error)
                return
            for partition in partitions:
                try:
                    leader = await self._cluster.leader(name, partition.partition, self._deadline)
                except UnknownTopicOrPartition as error:
                    is_new = not self._unknown_until.setdefault(partition, Deadline(NEW_MS)).has_passed
                    self._fail([partition], error if is_new else NoSuchTopic(error.message))
                except KafkaError as error:
                    self._fail([partition], error)
                else:
                    by_leader[leader.id].append(partition)

        await asyncio.gather(*(find(name, partitions) for name, partitions in by_topic.items()))
        return by_leader

    async def _ask(self, leader: int, partitions: Sequence[TopicPartition]) -> None:
        try:
            await self._find_ends(leader, [each for each in partitions if each not in self._before])
            asked = [each for each in partitions if each in self._before]
            if asked:
                await self._delete(leader, asked)
        except KafkaError as error:
            self._fail(partitions, error)
        left_out = [each for each in partitions if each not in self.results and each not in self._errors]
        self._fail(left_out, RequestTimedOut("the broker left out partitions that it was asked for"))

    async def _find_ends(self, leader: int, partitions: Sequence[TopicPartition]) -> None:
        if not partitions:
            return
        found = await ask_leader(self._cluster, leader, dict.fromkeys(partitions, LATEST), self._deadline)
        for partition, place in found.items():
            if isinstance(place, KafkaError):
                self._fail([partition], place)
            else:
                self._before[partition] = place.offset

    async def _delete(self, leader: int, partitions: Iterable[TopicPartition]) -> None:
        by_topic: dict[str, list[DeleteRecordsRequest.DeleteRecordsPartition]] = defaultdict(list)
        for partition in partitions:
            by_topic[partition.topic].append(
                DeleteRecordsRequest.DeleteRecordsPartition(
                    partition_index=partition.partition, offset=self._before[partition]
                )
            )
        try_ms = self._cluster.try_timeout_ms(self._deadline)
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsRequest.DeleteRecordsTopic(name=name, partitions=parts)
                for name, parts in by_topic.items()
            ],
            timeout_ms=max(try_ms - ANSWER_MS, try_ms * 3 // 4),
        )
        response = await self._cluster.request(leader, request, DeleteRecordsResponse, self._deadline)
        for topic in response.topics:
            for part in topic.partitions:
                partition = TopicPartition(topic.name, part.partition_index)
                try:
                    raise_for(part.error_code, None, f"partition {partition}")
                except KafkaError as error:
                    self._fail([partition], error)
                else:
                    self.results[partition] = part.low_watermark

    def _fail(self, partitions: Iterable[TopicPartition], error: KafkaError) -> None:
        for partition in partitions:
            if partition in self.results:
                continue
            if isinstance(error, OffsetOutOfRange) and self._wanted[partition] == END:
                # A new leader learns last how far all have come.
                self._errors[partition] = OffsetNotAvailable(f"partition {partition} ends earlier by now")
            elif error.retriable:
                self._errors[partition] = error
            else:
                self.results[partition] = error
                continue
            self._cluster.forget(partition.topic)
