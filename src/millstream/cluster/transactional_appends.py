"""Transactional batches on their way into a partition: only those of a transaction that is open.

A batch whose transaction has no records here yet is appended only after the transaction's coordinator
has said that the partition is part of it (KIP-890): else a batch that comes after its transaction has
ended would open one that nobody ever ends, and hold the last stable offset for good. While an answer
is awaited, later batches of that producer wait behind; those of others do not.

An answer holds for the transaction it was asked about: if an end marker of the producer is appended
meanwhile, the coordinator is asked again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, runtime_checkable

from millstream.errors import (
    CoordinatorNotAvailable,
    InvalidRecord,
    KafkaError,
    OutOfOrderSequenceNumber,
    kept,
)
from millstream.model import TopicPartition
from millstream.protocol.batch import BatchHeader
from millstream.storage.log import Appended, Log

ADDS_SINCE = 12
"""From this version of Produce on, the leader makes a partition part of the transaction itself."""


Admission = Callable[[TopicPartition, str | None, int, int, int], Awaitable[None] | None]
"""Asks a transaction's coordinator whether a batch may be appended: the partition, the transactional
id, the producer's id and epoch, and the version of Produce are given.

None if it may; something to wait for if that is not known yet. KafkaError if it may not.
"""


@runtime_checkable
class Closable(Protocol):
    """Something to wait for that wants to be told if nobody will."""

    def close(self) -> None: ...


def no_admission(*_: object) -> None:
    """The answer where nobody coordinates transactions."""
    raise CoordinatorNotAvailable


class Guard:
    """Tells whether a producer's transaction has ended, or may have, since the guard was set."""

    __slots__ = ("is_broken",)

    def __init__(self) -> None:
        self.is_broken = False


class _Waiting:
    """A batch that waits, with a copy of its bytes."""

    __slots__ = ("appended", "data", "header", "produce_version", "transactional_id")

    def __init__(
        self, data: memoryview, header: BatchHeader, transactional_id: str | None, produce_version: int
    ) -> None:
        self.data = memoryview(bytearray(data))
        self.header = header
        self.transactional_id = transactional_id
        self.produce_version = produce_version
        self.appended: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()


class TransactionalAppends:
    """The transactional batches of one partition."""

    def __init__(
        self,
        name: TopicPartition,
        log: Log,
        admission: Admission,
        write: Callable[[memoryview, BatchHeader], Appended],
    ) -> None:
        self._name = name
        self._log = log
        self._admission = admission
        self._write = write
        self._lines: dict[int, deque[_Waiting]] = {}
        self._guards: dict[int, list[Guard]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def append(
        self, data: memoryview, header: BatchHeader, transactional_id: str | None, produce_version: int
    ) -> Appended | asyncio.Future[Appended]:
        """Append a checked batch, at once if it may be; else its bytes are copied and it waits."""
        producer_id = header.producer_id
        if producer_id < 0:
            raise InvalidRecord("a transactional batch without a producer id")
        line = self._lines.get(producer_id)
        if line is None:
            admitted = self._ask(header, transactional_id, produce_version)
            if admitted is None:
                return self._write(data, header)
            line = self._lines[producer_id] = deque()
            guard = self.guard(producer_id)
            task = asyncio.get_running_loop().create_task(self._serve(producer_id, line, guard, admitted))
            self._tasks.add(task)
            task.add_done_callback(partial(self._served, admitted))
        waiting = _Waiting(data, header, transactional_id, produce_version)
        line.append(waiting)
        return waiting.appended

    def _served(self, admitted: Awaitable[None], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if isinstance(admitted, Closable):
            admitted.close()  # it was never begun if the task was cancelled before it began

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has records of an open transaction here."""
        return self._log.producers.is_open(producer_id, epoch)

    def _ask(
        self, header: BatchHeader, transactional_id: str | None, produce_version: int
    ) -> Awaitable[None] | None:
        producer_id, epoch = header.producer_id, header.producer_epoch
        if self.is_open(producer_id, epoch):
            return None
        if produce_version >= ADDS_SINCE and header.base_sequence and producer_id not in self._log.producers:
            self._log.producers.check_refused(header)
            raise OutOfOrderSequenceNumber(
                f"producer {producer_id} is not known here and starts at sequence {header.base_sequence}"
            )
        return self._admission(self._name, transactional_id, producer_id, epoch, produce_version)

    async def _serve(
        self,
        producer_id: int,
        line: deque[_Waiting],
        guard: Guard,
        admitted: Awaitable[None] | None,
    ) -> None:
        """Append what waits in a producer's line, in order; the line is gone when it is empty."""
        try:
            while line:
                try:
                    appended = await self._append(line[0], guard, admitted)
                    if not line[0].appended.done():
                        line[0].appended.set_result(appended)
                except Exception as error:
                    if isinstance(error, KafkaError) and error.retriable:
                        self._log.producers.refuse(line[0].header, error)
                    if not line[0].appended.done():
                        line[0].appended.set_exception(kept(error))
                admitted = None
                line.popleft()
        finally:
            if self._lines.get(producer_id) is line:
                del self._lines[producer_id]
            self.release(producer_id, guard)

    async def _append(self, waiting: _Waiting, guard: Guard, admitted: Awaitable[None] | None) -> Appended:
        while True:
            if admitted is None:
                guard.is_broken = False
                admitted = self._ask(waiting.header, waiting.transactional_id, waiting.produce_version)
            if admitted is not None:
                await admitted
                admitted = None
                if guard.is_broken:
                    continue
            return self._write(waiting.data, waiting.header)

    def stop(self) -> None:
        """Leave what waits unanswered."""
        for task in self._tasks:
            task.cancel()

    def fail(self, error: Exception) -> None:
        """Answer everything that waits with an error: the partition is not led here any more.

        Ends of transactions may come to whoever leads it now.
        """
        for guards in self._guards.values():
            for guard in guards:
                guard.is_broken = True
        lines, self._lines = self._lines, {}
        for line in lines.values():
            for waiting in line:
                if isinstance(error, KafkaError) and error.retriable:
                    self._log.producers.refuse(waiting.header, error)
                if not waiting.appended.done():
                    waiting.appended.set_exception(error)
        self.stop()

    # Ends of transactions

    def ended(self, producer_id: int) -> None:
        """An end marker of the producer was appended."""
        for guard in self._guards.get(producer_id, ()):
            guard.is_broken = True

    def guard(self, producer_id: int) -> Guard:
        """A guard that breaks with the next end of a transaction of the producer; to be released."""
        guard = Guard()
        self._guards.setdefault(producer_id, []).append(guard)
        return guard

    def release(self, producer_id: int, guard: Guard) -> None:
        guards = self._guards[producer_id]
        guards.remove(guard)
        if not guards:
            del self._guards[producer_id]
