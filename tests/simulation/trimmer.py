"""An operator who deletes the oldest records of partitions, by DeleteRecords, now and then."""

from __future__ import annotations

import asyncio
from random import Random

from millstream.errors import OffsetOutOfRange, error_for
from millstream.protocol.messages import DeleteRecordsRequest
from tests.simulation.client import EARLIEST, LATEST, RETRY_S, Client
from tests.simulation.history import History, Trim


class Trimmer:
    """Deletes up to random offsets, and writes down what it asked for and what was done."""

    def __init__(self, client: Client, history: History, random: Random, partitions: int) -> None:
        self.client = client
        self.history = history
        self.random = random
        self.is_over = False
        self._partitions = partitions

    async def run(self) -> None:
        while not self.is_over:
            await asyncio.sleep(self.random.uniform(1.0, 10.0))
            partition = self.random.randrange(self._partitions)
            start = await self.client.offset(partition, EARLIEST)
            end = await self.client.offset(partition, LATEST)
            if end > start:
                await self._trim(partition, self.random.randint(start, (start + end) // 2))

    async def _trim(self, partition: int, offset: int) -> None:
        trim = Trim(partition, offset, asyncio.get_running_loop().time())
        self.history.trims.append(trim)
        asked = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition, offset=offset)
        topic = DeleteRecordsRequest.DeleteRecordsTopic(name=self.client.topic, partitions=[asked])
        while True:
            answer = await self.client.until_done(DeleteRecordsRequest(topics=[topic], timeout_ms=3000), 2)
            found = answer.topics[0].partitions[0]
            self.client.log(f"delete below {partition}@{offset}: {found.error_code}, {found.low_watermark}")
            if not found.error_code:
                trim.done_at = asyncio.get_running_loop().time()
                return
            if found.error_code == OffsetOutOfRange.code and self.history.losses:
                return  # a power loss has taken what was to be deleted
            if not error_for(found.error_code).retriable:
                name = error_for(found.error_code).__name__
                self.history.complaints.append(f"deleting below {partition}@{offset}: {name}")
                return
            await asyncio.sleep(RETRY_S)
