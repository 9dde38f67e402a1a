"""The records that a producer holds: by topic and partition, in batches, bounded in bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import NamedTuple

from millstream.client.batch_builder import Batch
from millstream.client.metadata import Topic, check_topic
from millstream.client.partitioners import PartitionFunction
from millstream.client.producer_delivery import Delivery, Unplaced
from millstream.client.producer_line import Line
from millstream.client.producer_settings import ProducerSettings
from millstream.errors import MessageTooLarge, MillstreamError, UnknownTopicOrPartition
from millstream.model import NO_UUID
from millstream.protocol.client_kernel import BatchBuilder, partition_of
from millstream.protocol.header import HEADER_SIZE

RECORD_OVERHEAD_BYTES = HEADER_SIZE + 40

NO_TIMESTAMP = -1
"""What a record that has none carries."""

Headers = Sequence[tuple[str, bytes | None]]


class BufferFull(MillstreamError):
    """The producer's buffer holds as much as it may: records come faster than brokers take them."""

    more_bytes: int | None = None
    """For how many there was no room."""


class _Aside(NamedTuple):
    """A record of a topic that is not known yet."""

    delivery: Delivery
    key: bytes | None
    value: bytes | None
    partition: int | None
    timestamp_ms: int
    headers: Headers
    reserved_bytes: int


class TopicLines:
    """A topic's lines; none, and its records set aside, until the topic is known."""

    __slots__ = ("aside", "count", "id", "lines", "name", "open_lines", "sticky", "unplaced")

    def __init__(self, name: str) -> None:
        self.name = name
        self.id = NO_UUID
        self.lines: list[Line] = []
        self.count = 0
        self.open_lines: list[Line] = []
        self.sticky: Line | None = None
        self.aside: list[_Aside] = []
        self.unplaced = Unplaced()


class RecordBuffer:
    """Takes records from any thread and hands out batches to the sender.

    `lock` guards the queues of all lines and the count of bytes. A batch is charged with what it may grow to
    when it is begun, and with what it has when it is sent; the charge is given back when it is done.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        *,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float],
        random: Random,
        partition_function: PartitionFunction | None,
    ) -> None:
        self.lock = threading.RLock()
        self.topics: dict[str, TopicLines] = {}
        self.active: dict[Line, None] = {}
        self.incomplete: dict[Batch, None] = {}
        self.used_bytes = 0
        self.has_full = False
        self.end: Exception | None = None
        """Once nobody sends any more: what whoever brings records is told."""
        self.on_work: Callable[[], object] = lambda: None
        self._settings = settings
        self._batch_bytes = settings.batch_bytes
        self._limit_bytes = settings.buffer_bytes
        self.max_record_bytes = settings.max_request_bytes
        self._now_ms = now_ms
        self._monotonic = monotonic
        self._random = random
        self._choose = partition_function

    # ---------------------------------------------------------------- records

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers,
    ) -> Delivery:
        """Take a record; BufferFull if there is no room for another batch.

        The lock is held by the caller, where there are other threads than the sender's.
        """
        if timestamp_ms is None:
            timestamp_ms = self._now_ms()
        elif timestamp_ms < NO_TIMESTAMP:
            raise ValueError(f"a timestamp is not negative, but {timestamp_ms} was given")
        place = self.topics.get(topic)
        if place is None or not place.count:
            return self._set_aside(topic, key, value, partition, timestamp_ms, headers)
        if partition is not None:
            line = self._line_at(place, partition)
        elif self._choose is not None:
            line = self._line_at(place, self._choose(topic, key, place.count))
        elif key is not None:
            line = place.lines[partition_of(key, place.count)]
        else:
            line = place.sticky or self.stick(place)
        batch = line.open
        if batch is not None:
            index = batch.builder.append(timestamp_ms, key, value, headers)
            if index >= 0:
                return Delivery(batch, index, timestamp_ms)
        if line is place.sticky and key is None and partition is None:
            line = self.stick(place)
        batch, index = self._append_anew(line, key, value, timestamp_ms, headers)
        return Delivery(batch, index, timestamp_ms)

    @staticmethod
    def _line_at(place: TopicLines, partition: int) -> Line:
        if not 0 <= partition < place.count:
            raise UnknownTopicOrPartition(
                f"topic {place.name} has partitions 0 to {place.count - 1}, not {partition}"
            )
        return place.lines[partition]

    def _append_anew(
        self, line: Line, key: bytes | None, value: bytes | None, timestamp_ms: int, headers: Headers
    ) -> tuple[Batch, int]:
        """Take a record into a new batch, or into the open one of a line that was just chosen."""
        batch = line.open
        if batch is not None:
            index = batch.builder.append(timestamp_ms, key, value, headers)
            if index >= 0:
                return batch, index
        builder = BatchBuilder(self._room_for(key, value, headers))
        index = builder.append(timestamp_ms, key, value, headers)
        return self.begin(line, builder), index

    def _room_for(self, key: bytes | None, value: bytes | None, headers: Headers) -> int:
        """What the batch of a record may grow to; errors for what is no record."""
        for part in (key, value):
            if part is not None and type(part) is not bytes:
                raise TypeError(
                    f"keys and values are bytes, not {type(part).__name__}: give the producer a serializer"
                )
        size = RECORD_OVERHEAD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)
        for name, content in headers:
            if content is not None and type(content) is not bytes:
                raise TypeError(f"a header's value is bytes, not {type(content).__name__}")
            size += 10 + 4 * len(name) + (len(content) if content else 0)
        if size > self.max_record_bytes:
            raise MessageTooLarge(
                f"a record of {size} bytes is larger than max_request_bytes, {self.max_record_bytes}"
            )
        return max(self._batch_bytes, size)

    def begin(self, line: Line, builder: BatchBuilder, reserved_bytes: int | None = None) -> Batch:
        """A new open batch at the end of a line; the one that was open is full. The lock is held."""
        size = builder.limit if reserved_bytes is None else reserved_bytes
        self.reserve(size)
        batch: Batch | None = None
        try:
            batch = Batch(line.topic, line.index, line.next_number, builder, size, self._monotonic())
            # From here to the queue nothing is called, so that a signal finds all of it done or nothing.
            line.next_number += 1
            if line.open is not None:
                self.has_full = True
            line.open = batch
            self.incomplete[batch] = None
            self.active[line] = None
            line.queue.append(batch)
            return batch
        finally:
            if batch is None:
                self.used_bytes -= size
            self.on_work()

    def reserve(self, more_bytes: int) -> None:
        if self.end is not None:
            raise self.end.with_traceback(None)
        if self.used_bytes + more_bytes > self._limit_bytes and self.used_bytes:
            full = BufferFull(f"{self.used_bytes} of {self._limit_bytes} bytes are taken")
            full.more_bytes = more_bytes
            raise full
        self.used_bytes += more_bytes

    def has_room(self, more_bytes: int | None = None) -> bool:
        """Whether so many bytes, or a batch of single records, can be taken."""
        more = self._batch_bytes if more_bytes is None else more_bytes
        return self.used_bytes + more <= self._limit_bytes or not self.used_bytes

    def replace(self, batch: Batch, parts: list[Batch]) -> None:
        """Let the parts of a batch be held, and charged for, in its place. The lock is held."""
        self.incomplete.pop(batch, None)
        self.used_bytes += sum(part.reserved_bytes for part in parts) - batch.reserved_bytes
        batch.reserved_bytes = 0
        for part in parts:
            self.incomplete[part] = None

    def release(self, batch: Batch) -> None:
        """Forget a batch that is done, and what it was charged with."""
        with self.lock:
            self.incomplete.pop(batch, None)
            self.used_bytes -= batch.reserved_bytes
            batch.reserved_bytes = 0

    def recharge(self, batch: Batch, size: int) -> None:
        """Charge a sealed batch with what it has become."""
        with self.lock:
            self.used_bytes += size - batch.reserved_bytes
            batch.reserved_bytes = size

    def stick(self, place: TopicLines) -> Line:
        """Another partition for records without a key: any that has a leader."""
        choices = place.open_lines or place.lines
        line = choices[self._random.randrange(len(choices))]
        if line is place.sticky and len(choices) > 1:
            line = choices[(choices.index(line) + 1) % len(choices)]
        place.sticky = line
        return line

    # ---------------------------------------------------------------- topics

    def _set_aside(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        timestamp_ms: int,
        headers: Headers,
    ) -> Delivery:
        check_topic(topic)
        size = self._room_for(key, value, headers) - self._batch_bytes
        size = max(size, RECORD_OVERHEAD_BYTES + (len(key) if key else 0) + (len(value) if value else 0))
        self.reserve(size)
        place = self.topics.get(topic)
        if place is None:
            place = self.topics[topic] = TopicLines(topic)
        delivery = Delivery(place.unplaced, 0, timestamp_ms)
        place.aside.append(_Aside(delivery, key, value, partition, timestamp_ms, headers, size))
        self.on_work()
        return delivery

    def unknown_topics(self) -> list[str]:
        """The topics whose records wait until they are known."""
        return [name for name, place in list(self.topics.items()) if place.aside and not place.count]

    def update(self, topic: Topic) -> None:
        """Take over what became known of a topic; records that were set aside go to their partitions."""
        with self.lock:
            place = self.topics.get(topic.name)
            if place is None:
                place = self.topics[topic.name] = TopicLines(topic.name)
            gone = self._shrink(place, topic) if topic.id != place.id else []
            place.id = topic.id
            while place.count < len(topic.partitions):
                place.lines.append(Line(topic.name, place.count))
                place.count += 1
            place.open_lines = [
                line
                for line in place.lines
                if line.index in topic.partitions and topic.partitions[line.index].leader >= 0
            ]
            for line in place.lines:
                line.needs_leader = False
            aside, place.aside = place.aside, []
            unplaced, place.unplaced = place.unplaced, Unplaced()
            for record in aside:
                self.used_bytes -= record.reserved_bytes
                self._place(topic.name, record)
        unplaced.moved()
        if gone:
            reason = f"topic {topic.name} was made anew and has partitions 0 to {place.count - 1} only"
            self.drop(gone, UnknownTopicOrPartition(reason))

    @staticmethod
    def _shrink(place: TopicLines, topic: Topic) -> list[Line]:
        """A topic that was made anew may have fewer partitions; the lines of those that are gone.

        One that is the same never has: an answer that shows fewer is behind the times.
        """
        gone = place.lines[len(topic.partitions) :]
        del place.lines[len(topic.partitions) :]
        place.count = len(place.lines)
        if place.sticky in gone:
            place.sticky = None
        return gone

    def _place(self, topic: str, record: _Aside) -> None:
        """Give a record its partition now. It was taken already, so the limit does not stop it."""
        limit, self._limit_bytes = self._limit_bytes, 1 << 62
        try:
            placed = self.append(
                topic, record.key, record.value, record.partition, record.timestamp_ms, record.headers
            )
            record.delivery.place(placed.outcome, placed.index, record.timestamp_ms)
        except Exception as error:
            failed = Unplaced()
            failed.fail(error)
            record.delivery.place(failed, 0, record.timestamp_ms)
        finally:
            self._limit_bytes = limit

    def fail_topic(self, name: str, error: Exception) -> None:
        """Fail the records of a topic that did not become known."""
        with self.lock:
            place = self.topics[name]
            aside, place.aside = place.aside, []
            unplaced, place.unplaced = place.unplaced, Unplaced()
            if not place.count:
                del self.topics[name]
            for record in aside:
                self.used_bytes -= record.reserved_bytes
        unplaced.fail(error)

    # ---------------------------------------------------------------- ends

    def drop(self, lines: Iterable[Line], error: Exception, *, even_sent: bool = True) -> None:
        """Fail the queued batches of some lines; those that were sent once stay unless `even_sent`."""
        for line in lines:
            with self.lock:
                kept = [] if even_sent else [batch for batch in line.queue if batch.attempts]
                dropped = [batch for batch in line.queue if even_sent or not batch.attempts]
                line.queue.clear()
                line.queue.extend(kept)
                line.open = None
            for batch in dropped:
                self.release(batch)
                batch.failed(error)
