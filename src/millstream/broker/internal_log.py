"""A partition of an internal topic as the coordinators' runtime sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from millstream.clock import Clock
from millstream.cluster.partition import Partition
from millstream.coordinator.runtime import LoadedBatch
from millstream.coordinator.shard import Entry, Producer
from millstream.errors import (
    CoordinatorNotAvailable,
    KafkaStorageError,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    UnknownTopicOrPartition,
)
from millstream.protocol.batch import decode_marker, decode_records, encode_batch
from millstream.protocol.fetched import whole_batches
from millstream.protocol.record import Record

LOAD_BYTES = 2 * 1024 * 1024
"""How much is read and decoded at a time while loading."""


class PartitionLog:
    """Writes entries as record batches and reads them back."""

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self.partition = partition
        self._clock = clock

    @property
    def end_offset(self) -> int:
        return self.partition.log.end_offset

    def append(self, entries: Sequence[Entry], producer: Producer | None) -> int:
        now_ms = self._clock.now_ms()
        records = [Record(entry.value, entry.key, (), now_ms) for entry in entries]
        if producer is None:
            batch = encode_batch(records)
        else:
            batch = encode_batch(
                records,
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
        return self.partition.when_committed(next_offset)

    async def read(self, offset: int) -> tuple[list[LoadedBatch], int]:
        return await asyncio.get_running_loop().run_in_executor(None, self._read, offset)

    def _read(self, offset: int) -> tuple[list[LoadedBatch], int]:
        log = self.partition.log
        found = log.read(max(offset, log.start_offset), LOAD_BYTES)
        batches = []
        for header, position in whole_batches(found.data, verify_crc=False):
            producer = (
                Producer(header.producer_id, header.producer_epoch) if header.is_transactional else None
            )
            records = decode_records(
                found.data[position : position + header.size], include_control=True, verify_crc=False
            )
            if header.is_control:
                marker = decode_marker(records[0]) if records else None
                if marker is not None:
                    batches.append(LoadedBatch([], producer, marker.is_commit))
                continue
            entries = [
                (record.offset, Entry(record.key, record.value))
                for record in records
                if record.key is not None
            ]
            batches.append(LoadedBatch(entries, producer))
        return batches, found.next_offset
