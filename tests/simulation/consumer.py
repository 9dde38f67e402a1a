"""Consumers that write down what they read: their partitions from the start on, every record once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from millstream.errors import OffsetOutOfRange, error_for
from millstream.protocol.batch import decode_records
from millstream.protocol.messages import FetchRequest
from millstream.protocol.record import Record
from tests.simulation.client import EARLIEST, LATEST, RETRY_S, Client, expect_retriable
from tests.simulation.history import History, Read

FETCH_VERSION = 12


class Session:
    """What a broker knows of a consumer's fetches: the positions that it was told."""

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = 0
        self._told: dict[int, int] = {}

    def is_news(self, partition: int, offset: int) -> bool:
        return self._told.get(partition) != offset

    def go_on(self, session_id: int, told: dict[int, int]) -> None:
        self.session_id = session_id
        if session_id:
            self._told.update(told)
            self.epoch += 1


class Consumer:
    """Reads partitions from their start, for ever. With a session (KIP-227) it sends only what changed."""

    def __init__(
        self, name: str, client: Client, history: History, random: Random, *, has_session: bool = False
    ) -> None:
        self.name = name
        self.client = client
        self.history = history
        self.random = random
        self.position: dict[int, int] = {}
        self.read = 0
        self._run = 0
        self._session = Session() if has_session else None

    async def run(self, partitions: Sequence[int]) -> None:
        self.position = dict.fromkeys(partitions, 0)
        while True:
            if not await self._poll():
                await asyncio.sleep(self.random.uniform(0.0, RETRY_S))

    async def _poll(self) -> bool:
        max_bytes = self.random.choice((1, 1000, 20_000, 1_000_000))
        session = self._session
        partitions = [
            FetchRequest.FetchPartition(
                partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes
            )
            for partition, offset in self.position.items()
            if session is None or session.is_news(partition, offset)
        ]
        topics = [FetchRequest.FetchTopic(topic=self.client.topic, partitions=partitions)]
        request = FetchRequest(
            max_wait_ms=self.random.choice((0, 50, 500)),
            min_bytes=self.random.choice((1, 1, 1, 1000)),
            max_bytes=max_bytes,
            topics=topics if partitions else [],
        )
        if session is not None:
            request.session_id, request.session_epoch = session.session_id, session.epoch
        asked_at = asyncio.get_running_loop().time()
        try:
            answer = await self.client.request(request, FETCH_VERSION)
        except OSError:
            self._session = session and Session()
            return False
        if session is not None:
            if answer.error_code or (session.epoch and answer.session_id != session.session_id):
                self._session = Session()
                return not answer.error_code
            session.go_on(answer.session_id, {each.partition: each.fetch_offset for each in partitions})
        is_good = True
        for topic in answer.responses:
            for found in topic.partitions:
                if found.error_code == OffsetOutOfRange.code:
                    await self._reset(found.partition_index)
                elif found.error_code:
                    name = error_for(found.error_code).__name__
                    self.client.log(f"{self.name} cannot read {found.partition_index}: {name}")
                    expect_retriable(self.name, found.error_code)
                    self.client.refused()
                    is_good = False
                else:
                    self._take(found.partition_index, found.records, asked_at)
        return is_good

    def _take(self, partition: int, data: memoryview | None, asked_at: float) -> None:
        now = asyncio.get_running_loop().time()
        for record in decode_records(data or b""):
            if record.offset >= self.position[partition]:
                self.position[partition] = record.offset + 1
                self.read += 1
                value = text_of(record)
                self.history.reads.append(
                    Read(self.name, self._run, partition, record.offset, value, asked_at, now)
                )

    async def _reset(self, partition: int) -> None:
        """Records were deleted before they were read, or a power loss has shortened the log."""
        position = self.position[partition]
        start = await self.client.offset(partition, EARLIEST)
        if not position < start <= self.history.trimmed(partition) and (
            self.history.is_flushed_before_ack or not self.history.losses
        ):
            self.history.complaints.append(f"{self.name}: {partition}@{position} is out of range")
        self._run += 1
        self.client.log(f"{self.name} sets its position in {partition} anew")
        self.position[partition] = start if position < start else await self.client.offset(partition, LATEST)


def text_of(record: Record) -> str:
    return (record.value or b"").split(b"|", 1)[0].decode()
