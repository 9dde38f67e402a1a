"""Hands out the records that were fetched ahead, one by one, in lists or by the column."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from millstream.client.poll_point import PollPoint
from millstream.client.record import ReadBatch
from millstream.client.subscription import Assignment
from millstream.deadline import Deadline
from millstream.protocol.consumer_kernel import Record

if TYPE_CHECKING:
    import pyarrow

LONG_S = 3600.0
ENOUGH_RECORDS = 500
"""With so many records, batches are handed out, though more lie ready."""


class RecordFlow:
    """From what lies ready to the caller. What is due at a poll comes before the next record.

    The coroutines run on the event loop. What is not a coroutine may run in the thread of a caller that
    blocks: it only takes what lies ready, and takes nothing while something is due. What a poll took until
    a signal or an error ended it is handed out by the next one.
    """

    def __init__(self, assignment: Assignment, poll_point: PollPoint) -> None:
        self._assignment = assignment
        self._poll_point = poll_point
        self._has_ended = False

    def end(self) -> None:
        """No more records are to be handed out."""
        self.stop()
        self._poll_point.wake()

    def stop(self) -> None:
        """Hand out nothing more, in a process in which nobody waits."""
        self._has_ended = True

    # ---------------------------------------------------------------- on the event loop

    async def poll(self, max_records: int, deadline: Deadline) -> list[Record]:
        if self._assignment.has_room_again:
            await self._let_fetch()
        self._assignment.taking = {}
        try:
            records = self.take(max_records)
            while not records and not self._has_ended:
                await self._poll_point.attend()
                records = self._assignment.take(max_records)
                if records or deadline.has_passed:
                    break
                await self._poll_point.wait(deadline.remaining_ms / 1000)
            return records
        except BaseException:
            self._assignment.take_back()
            raise

    async def poll_batches(self, deadline: Deadline) -> list[ReadBatch]:
        if self._assignment.has_room_again:
            await self._let_fetch()
        self._assignment.taking = {}
        try:
            while not self._has_ended:
                await self._poll_point.attend()
                batches = self._assignment.take_batches(ENOUGH_RECORDS)
                if batches or deadline.has_passed:
                    return batches
                await self._poll_point.wait(deadline.remaining_ms / 1000)
            return []
        except BaseException:
            self._assignment.take_back()
            raise

    @staticmethod
    async def _let_fetch() -> None:
        """Let the next Fetch leave. Nothing is awaited once records were taken: whoever cancels a poll
        would lose them."""
        await asyncio.sleep(0)

    async def next(self) -> Record | None:
        """The next record, however long it takes; None at the end."""
        ready = self._assignment.ready
        while True:
            while ready and not self._poll_point.is_due:
                reader = ready[0]
                for record in reader:
                    return record
                self._assignment.finish(reader)
                await asyncio.sleep(0)
            if not await self.until_ready():
                return None

    async def poll_arrow(self, deadline: Deadline) -> pyarrow.RecordBatch:
        from millstream.client.consumer_arrow import take_arrow

        await self._let_fetch()
        self._assignment.taking = {}
        try:
            while True:
                if self._poll_point.is_due:
                    await self._poll_point.attend()
                batch = take_arrow(self._assignment)
                if batch.num_rows or deadline.has_passed or self._has_ended:
                    return batch
                await self._poll_point.wait(deadline.remaining_ms / 1000)
        except BaseException:
            self._assignment.take_back()
            raise

    async def until_ready(self) -> bool:
        """Do what is due and wait for records; false at the end."""
        while not self._has_ended:
            await self._poll_point.attend()
            if self._assignment.ready:
                return True
            await self._poll_point.wait(LONG_S)
        return False

    # ---------------------------------------------------------------- in the caller's thread

    def take(self, max_records: int) -> list[Record]:
        """Records that lie ready."""
        if self._poll_point.is_due or self._has_ended:
            return []
        return self._assignment.take(max_records)

    def take_arrow(self) -> pyarrow.RecordBatch | None:
        """Records that lie ready, by the column."""
        from millstream.client.consumer_arrow import take_arrow

        if self._poll_point.is_due or self._has_ended or not self._assignment.ready:
            return None
        batch = take_arrow(self._assignment)
        return batch if batch.num_rows else None

    def iterate(self, wait: Callable[[], bool]) -> Iterator[Record]:
        """Records that lie ready, one by one; `wait` waits for more and is false at the end."""
        point, assignment = self._poll_point, self._assignment
        ready = assignment.ready
        while wait():
            while ready and not point.is_due:
                reader = ready[0]
                for record in reader:
                    yield record
                    if point.is_due:  # the other thread has set it meanwhile
                        break  # type: ignore[unreachable]
                else:
                    assignment.finish(reader)
