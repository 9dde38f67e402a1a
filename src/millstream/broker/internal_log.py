"""A partition of an internal topic as the coordinators' runtime sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from operator import attrgetter

from millstream.clock import Clock
from millstream.cluster.partition import Partition
from millstream.coordinator.internal_log import LoadedBatch
from millstream.coordinator.shard import Entry, Producer
from millstream.errors import (
    CoordinatorNotAvailable,
    CorruptMessage,
    KafkaStorageError,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    UnknownTopicOrPartition,
)
from millstream.protocol.batch import BatchHeader, Codec, decode_marker, decode_records, encode_batch
from millstream.protocol.fetched import MAX_DECOMPRESSED_BYTES, payload_of, whole_batches
from millstream.protocol.header import CONTROL, GOOD, TRANSACTIONAL
from millstream.protocol.kernel import append_records
from millstream.protocol.record import Record

MAX_LOAD_BYTES = 512 * 1024
"""How much is decoded at a time at most: what is alive meanwhile prolongs garbage collections."""


class PartitionLog:
    """Writes entries as record batches and reads them back."""

    def __init__(self, partition: Partition, clock: Clock, load_bytes: int, codec: int = Codec.NONE) -> None:
        """`load_bytes` is how much is read at a time while loading; entries are compressed with `codec`."""
        self.partition = partition
        self._clock = clock
        self._codec = codec
        self._load_bytes = min(load_bytes, MAX_LOAD_BYTES)

    @property
    def end_offset(self) -> int:
        return self.partition.log.end_offset

    def append(self, entries: Sequence[Entry], producer: Producer | None) -> int:
        now_ms = self._clock.now_ms()
        records = [Record(entry.value, entry.key, (), now_ms) for entry in entries]
        if producer is None:
            batch = encode_batch(records, codec=self._codec)
        else:
            batch = encode_batch(
                records,
                codec=self._codec,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                is_transactional=True,
            )
        try:
            return self.partition.append_internal(batch).last_offset + 1
        except (NotEnoughReplicas, UnknownTopicOrPartition):
            raise CoordinatorNotAvailable from None
        except (NotLeaderOrFollower, KafkaStorageError):
            raise NotCoordinator from None

    def when_committed(self, next_offset: int) -> asyncio.Future[None] | None:
        if self.partition.refusal is not None:
            raise NotCoordinator
        try:
            self.partition.check_lease()  # what is known here may be out of date
        except NotLeaderOrFollower:
            raise NotCoordinator from None
        return self.partition.when_committed(next_offset)

    async def read(self, offset: int) -> tuple[list[LoadedBatch], int]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.partition.cold_reads, self._read, offset)

    def _read(self, offset: int) -> tuple[list[LoadedBatch], int]:
        log = self.partition.log
        found = log.read(max(offset, log.start_offset), self._load_bytes)
        return decode_batches(found.data), found.next_offset


def decode_batches(data: memoryview) -> list[LoadedBatch]:
    """The entries of whole batches in a row, checked before.

    Batches outside of transactions are put together as far as they follow each other, and of entries with
    the same key only the last is left, at its place: the topic is compacted, so that nobody can count on
    the others.
    """
    loaded: list[LoadedBatch] = []
    run: list[Record] = []
    for header, position in whole_batches(data, verify_crc=False):
        if header.attributes & (CONTROL | TRANSACTIONAL):
            if run:
                loaded.append(_plain(run))
                run = []
            loaded += _transactional(header, data[position : position + header.size])
        else:
            payload, start = payload_of(data, header, position, MAX_DECOMPRESSED_BYTES)
            if append_records(run, payload, header, 0, start) != GOOD:
                raise CorruptMessage(f"the batch at offset {header.base_offset} does not hold what it says")
    if run:
        loaded.append(_plain(run))
    return loaded


def _plain(records: list[Record]) -> LoadedBatch:
    latest = {record.key: record for record in records}
    if len(latest) < len(records):
        records = sorted(latest.values(), key=attrgetter("offset"))
    return LoadedBatch(_entries(records))


def _transactional(header: BatchHeader, data: memoryview) -> list[LoadedBatch]:
    """A batch of a transaction, or the marker that ends one."""
    producer = Producer(header.producer_id, header.producer_epoch)
    records = decode_records(data, include_control=True, verify_crc=False)
    if not header.is_control:
        return [LoadedBatch(_entries(records), producer)]
    marker = decode_marker(records[0]) if records else None
    return [] if marker is None else [LoadedBatch([], producer, marker.is_commit)]


def _entries(records: Iterable[Record]) -> list[tuple[int, Entry]]:
    return [(record.offset, Entry(record.key, record.value)) for record in records if record.key is not None]
